"""Requests that arrive one by one, faster than they can be served: how long each waits, from its arrival to its end.

Diffusers serves first come, first served, one call a request. The clock of arrivals is the same on every side: a
request is given when its time has come, and its latency counts from that time, also when nobody was free to take it.
Everything is done twice, on the wall's clock and on one that stands still while others have the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Protocol

import numpy as np

from benchmarks.engine.batching import least_ratio, measure_cost
from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import MIXED, MODES, SLOTS, Diffusers, Sides, Stage, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import paired
from stage_api.spec import Mode
from stage_runtime.engine.streams import Stream

COUNT = 12
GAP = 0.5
"""Of one diffusers latency."""
AIM = {Mode.REQUEST: 0.52, Mode.STEP: 0.45}
PEER = {Mode.REQUEST: "0.50–0.52", Mode.STEP: "0.72–0.74"}
WITHIN = 1
PROMPTS = tuple(MIXED[place % len(MIXED)] for place in range(COUNT))


class Clock(Protocol):
    """Seconds."""

    def now(self) -> float:
        """The time."""

    def wait_until(self, moment: float, idle: bool) -> None:
        """Come back then. `idle`: nothing is being drawn."""


class WallClock:
    """What users feel."""

    def now(self) -> float:
        """The time."""
        return time.perf_counter()

    def wait_until(self, moment: float, idle: bool) -> None:
        """Sleep."""
        if (left := moment - self.now()) > 0:
            time.sleep(left)


class OwnClock:
    """This process's CPU time, so that it stands still while others compute; it jumps where there is nothing to do."""

    def __init__(self) -> None:
        self._jumped = 0.0

    def now(self) -> float:
        """The time."""
        return time.process_time() + self._jumped

    def wait_until(self, moment: float, idle: bool) -> None:
        """Sleep while something is being drawn, jump otherwise."""
        while (left := moment - self.now()) > 0:
            if idle:
                self._jumped += left
                return
            time.sleep(left)


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row a mode."""
    check(sides)
    wall = _Rounds(sides, WallClock)
    own = _Rounds(sides, OwnClock)
    for number in range(options.rounds(4)):
        wall.go(number)
        own.go(number)
    rows = [
        Row(
            what=f"{COUNT} staggered arrivals, {mode} mode",
            value=median(wall.means[mode]) * 1e3,
            unit="ms",
            ratio=wall.ratio(mode),
            by_cpu=own.ratio(mode),
            aim=AIM[mode],
            peer=PEER[mode],
            details={"wall": wall.details(mode), "cpu": own.details(mode)},
        )
        for mode in MODES
    ]
    return rows + _floors(options, sides)


def _floors(options: Options, sides: Sides) -> list[Row]:
    """What no engine could go below on this model, for each mode."""
    cost = measure_cost(options, sides)
    arrivals = [GAP * cost(1) * place for place in range(COUNT)]
    gain = SLOTS * cost(1) / cost(SLOTS)
    return [
        Row(
            what=f"  an engine without any cost, {mode} mode",
            value=gain,
            unit=f"× by a batch of {SLOTS}",
            ratio=least_ratio(mode, cost, arrivals),
            details={"batch_s": {size: cost(size) for size in range(1, SLOTS + 1)}},
        )
        for mode in MODES
    ]


class _Rounds:
    """Mean latencies of all sides, round by round, on one kind of clock."""

    def __init__(self, sides: Sides, clock: Callable[[], Clock]) -> None:
        self._diffusers = sides.diffusers
        self._clock = clock
        self._serve: dict[str, Callable[[Clock, Sequence[float]], list[float]]] = {
            "diffusers": partial(serve_in_order, sides.diffusers),
            **{mode: partial(serve_with, sides.stages[mode]) for mode in MODES},
        }
        self.means: dict[str, list[float]] = {name: [] for name in self._serve}
        self.gaps: list[float] = []

    def go(self, number: int) -> None:
        """One round: every side once, its gap measured right before."""
        self.gaps.append(GAP * median(self._alone(seed) for seed in range(3)))
        names = list(self._serve)
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            arrivals = [self.gaps[-1] * place for place in range(COUNT)]
            self.means[name].append(fmean(self._serve[name](self._clock(), arrivals)))

    def ratio(self, mode: Mode) -> float:
        """Median of the rounds' ratios."""
        return paired(self.means[mode], self.means["diffusers"])

    def details(self, mode: Mode) -> dict[str, object]:
        """All that was measured."""
        return {
            "gap_s": self.gaps,
            "mean_latency_s": self.means[mode],
            "diffusers_mean_latency_s": self.means["diffusers"],
            "ratio": self.ratio(mode),
            "ratio_at_best": min(self.means[mode]) / min(self.means["diffusers"]),
        }

    def _alone(self, seed: int) -> float:
        """Seconds of one diffusers request."""
        clock = self._clock()
        began = clock.now()
        self._diffusers.draw([PROMPTS[seed]], [seed])
        return clock.now() - began


def serve_in_order(diffusers: Diffusers, clock: Clock, arrivals: Sequence[float]) -> list[float]:
    """Latencies in seconds when each request is drawn alone, in the order of arrival."""
    latencies = []
    began = clock.now()
    for seed, arrival in enumerate(arrivals):
        clock.wait_until(began + arrival, idle=True)
        diffusers.draw([PROMPTS[seed]], [seed])
        latencies.append(clock.now() - began - arrival)
    return latencies


def serve_with(stage: Stage, clock: Clock, arrivals: Sequence[float]) -> list[float]:
    """Latencies in seconds when each request is handed to the engine at its time."""
    ends = [0.0] * len(arrivals)

    def note(place: int) -> None:
        ends[place] = clock.now()  # the last outcome is the terminal one

    streams: list[Stream] = []
    began = clock.now()
    for seed, arrival in enumerate(arrivals):
        clock.wait_until(began + arrival, idle=all(stream.ended for stream in streams))
        (stream,) = stage.ask([PROMPTS[seed]], [seed])
        stream.subscribe(partial(note, seed))
        streams.append(stream)
    for stream in streams:
        stream.result()
    return [end - began - arrival for end, arrival in zip(ends, arrivals, strict=True)]


def check(sides: Sides) -> None:
    """Whoever shares a wave with late ones gets the same picture, but for what batching changes."""
    theirs = [np.asarray(sides.diffusers.draw([prompt], [seed])[0]) for seed, prompt in enumerate(PROMPTS)]
    for mode, stage in sides.stages.items():
        streams = []
        for seed, prompt in enumerate(PROMPTS):
            streams += stage.ask([prompt], [seed])
            time.sleep(0.02)
        ours = [pixels(stream.result().output) for stream in streams]
        check_same(f"staggered arrivals, {mode} mode", ours, theirs, within=WITHIN)
