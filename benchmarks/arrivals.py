"""Requests that arrive one by one, faster than they can be served: how long each waits, from its arrival to its end.

Diffusers serves first come, first served, one call a request. The clock of arrivals is the same on every side: a
request is given when its time has come, and its latency counts from that time, also when nobody was free to take it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean, median

import numpy as np
from options import Options
from pictures import check_same
from report import Row
from sides import MIXED, MODES, Diffusers, Sides, Stage, pixels
from timing import Times, paired

from stage_runtime.engine.mode import Mode

COUNT = 12
GAP = 0.5
"""Of one diffusers latency."""
AIM = {Mode.REQUEST: 0.52, Mode.STEP: 0.45}
PEER = {Mode.REQUEST: "0.50–0.52", Mode.STEP: "0.72–0.74"}
WITHIN = 1
PROMPTS = tuple(MIXED[place % len(MIXED)] for place in range(COUNT))


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row a mode."""
    check(sides)
    serve: dict[str, Callable[[list[float]], list[float]]] = {
        "diffusers": partial(serve_in_order, sides.diffusers),
        **{mode: partial(serve_with, sides.stages[mode]) for mode in MODES},
    }
    means: dict[str, list[float]] = {name: [] for name in serve}
    gaps: list[float] = []
    for number in range(options.rounds(5)):
        alone = Times()
        for seed in range(3):
            alone.take(partial(sides.diffusers.draw, [PROMPTS[seed]], [seed]))
        gaps.append(GAP * median(alone.wall))
        names = list(serve)
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            means[name].append(fmean(serve[name]([gaps[-1] * place for place in range(COUNT)])))
    return [
        Row(
            what=f"{COUNT} staggered arrivals, {mode} mode",
            value=median(means[mode]) * 1e3,
            unit="ms",
            ratio=paired(means[mode], means["diffusers"]),
            aim=AIM[mode],
            peer=PEER[mode],
            details={
                "gap_ms": [gap * 1e3 for gap in gaps],
                "mean_latency_ms": [mean * 1e3 for mean in means[mode]],
                "diffusers_mean_latency_ms": [mean * 1e3 for mean in means["diffusers"]],
                "ratio_min": min(means[mode]) / min(means["diffusers"]),
            },
        )
        for mode in MODES
    ]


def serve_in_order(diffusers: Diffusers, arrivals: list[float]) -> list[float]:
    """Latencies in seconds when each request is drawn alone, in the order of arrival."""
    latencies = []
    began = time.perf_counter()
    for seed, arrival in enumerate(arrivals):
        _sleep_until(began + arrival)
        diffusers.draw([PROMPTS[seed]], [seed])
        latencies.append(time.perf_counter() - began - arrival)
    return latencies


def serve_with(stage: Stage, arrivals: list[float]) -> list[float]:
    """Latencies in seconds when each request is handed to the engine at its time."""
    ends = [0.0] * len(arrivals)

    def note(place: int) -> None:
        ends[place] = time.perf_counter()  # the last outcome is the terminal one

    streams = []
    began = time.perf_counter()
    for seed, arrival in enumerate(arrivals):
        _sleep_until(began + arrival)
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


def _sleep_until(moment: float) -> None:
    if (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
