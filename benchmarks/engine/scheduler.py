"""How the scheduler's costs depend on how many requests wait, and how full waves get with mixed shapes.

Prints microseconds (medians) with 100 and with 10,000 waiting, and their ratio; then the mean number of requests in
a wave, which is exact. `--check` ends with 1 when a ratio is above 1.5.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from statistics import median

from stage_runtime.core.outcome import Completed, Modality, Outcome, Output, Progressed
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.step import StepScheduler

SLOTS = 8
STEPS = 20
FEW, MANY = 100, 10_000
ROUNDS = 2_000
MOST_RATIO = 1.5
OUTPUT = Output(modality=Modality.IMAGE, data=b"\0\0\0", shape=(1, 1, 3), dtype="uint8")


def request(request_id: str, side: int = 512, steps: int = STEPS) -> Request:
    """A request of which `side` is the batch key."""
    key = BatchKey((("height", side), ("width", side), ("max_sequence_length", 512)))
    return Request(request_id=request_id, arguments={}, key=key, seed=0, steps=steps, pixels=side * side)


class Rig:
    """A scheduler with all slots taken and `waiting` requests behind them.

    One `abort`, one `finish` and two `add` leave the line as long as it was.
    """

    def __init__(self, kind: type[BaseScheduler], waiting: int) -> None:
        self._scheduler = kind(max_num_seqs=SLOTS, max_queue_size=waiting + SLOTS + 1)
        self._requests: list[Request] = []
        """All there were: whoever asks holds on to its request, so that freeing it is not timed here."""
        for _ in range(SLOTS + waiting):
            self.add()
        self._running = self._scheduler.schedule(0.0).scheduled_ids
        self._middle = SLOTS + waiting // 2

    def add(self) -> float:
        """Seconds to admit one more."""
        newcomer = [request(f"r{len(self._requests)}")]
        self._requests += newcomer
        began = time.perf_counter()
        self._scheduler.add(newcomer, 0.0)
        return time.perf_counter() - began

    def abort(self) -> float:
        """Seconds to abort one in the middle of the line."""
        waiting = self._requests[self._middle].request_id
        self._middle += 2  # every other one, so that it stays in the middle while the head moves on
        began = time.perf_counter()
        self._scheduler.abort(waiting, 0.0)
        return time.perf_counter() - began

    def step(self) -> float:
        """Seconds for a tick in which all advance by a step and none ends: update and schedule."""
        return self._tick([Progressed(running, 1, STEPS) for running in self._running])

    def finish(self) -> float:
        """Seconds for a tick in which one ends and the head of the line takes its slot: update and schedule."""
        ending, *others = self._running
        moved = [Progressed(running, 1, STEPS) for running in others]
        return self._tick([*moved, Completed(ending, OUTPUT, STEPS)])

    def _tick(self, outcomes: Sequence[Outcome]) -> float:
        began = time.perf_counter()
        self._scheduler.update(outcomes, 0.0)
        wave = self._scheduler.schedule(0.0)
        seconds = time.perf_counter() - began
        self._running = wave.scheduled_ids
        return seconds


def medians(kind: type[BaseScheduler], rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """Median seconds of each operation with few and with many waiting.

    Measured in turn, so that both see the same machine.
    """
    rigs = Rig(kind, FEW), Rig(kind, MANY)
    seconds: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for _ in range(rounds):
        for place, rig in enumerate(rigs):
            seconds["add"][place].append(rig.add())
            seconds["abort"][place].append(rig.abort())
            seconds["step"][place].append(rig.step())
            seconds["finish"][place].append(rig.finish())
            rig.add()
    return {name: (median(few), median(many)) for name, (few, many) in seconds.items()}


def occupancy(kind: type[BaseScheduler], sides: Iterator[int], count: int = 400) -> float:
    """Mean number of requests in a wave, over `count` requests of the given shapes that wait from the start."""
    scheduler = kind(max_num_seqs=SLOTS, max_queue_size=count)
    scheduler.add([request(f"r{n}", side, steps=1) for n, side in enumerate(islice(sides, count))], 0.0)
    waves = 0
    while scheduler.live:
        scheduled = scheduler.schedule(0.0).scheduled_ids
        scheduler.update([Completed(request_id, OUTPUT, 1) for request_id in scheduled], 0.0)
        waves += 1
    return count / waves


def shapes(*sides: int) -> Iterator[int]:
    """Random ones of `sides`, the same in each run."""
    chance = random.Random(0)
    while True:
        yield chance.choice(sides)


MIXES: dict[str, Callable[[], Iterator[int]]] = {
    "one shape": lambda: shapes(512),
    "two in turn": lambda: cycle((512, 768)),
    "two at random": lambda: shapes(512, 768),
    "four at random": lambda: shapes(512, 640, 768, 1024),
}
"""Sides of pictures, in the order in which they are asked for."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"fail when a ratio is above {MOST_RATIO}")
    check = parser.parse_args().check
    gc.disable()
    worst = 0.0
    print(f"scheduler, {SLOTS} slots, medians of {ROUNDS}, us with {FEW:,} and {MANY:,} waiting")
    for name, (few, many) in medians(StepScheduler).items():
        worst = max(worst, many / few)
        print(f"{name:17} {few * 1e6:6.2f} {many * 1e6:6.2f}  x{many / few:.2f}")
    print(f"mean requests in a wave, of {SLOTS}; first come, first served, nobody overtakes another shape")
    for name, mix in MIXES.items():
        print(f"{name:17} {occupancy(StepScheduler, mix()):.2f}")
    return 1 if check and worst > MOST_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
