"""The scheduler: its operations with 10,000 waiting beside 100, and how full waves of mixed shapes are."""

from __future__ import annotations

import gc

from benchmarks.engine import scheduler
from benchmarks.engine.sides import Sides
from benchmarks.options import Options
from benchmarks.report import Row
from stage_runtime.sched.step import StepScheduler

PEER = {"finish": "689–708 µs", "abort": "284–291 µs"}
PEER_OCCUPANCY = {
    "one shape": "8.0",
    "two in turn": "1.0",
    "two at random": "2.08",
    "four at random": "1.37",
}


def measure(options: Options, _sides: Sides) -> list[Row]:
    """A row an operation and a row a mix of shapes."""
    rounds = options.rounds(scheduler.ROUNDS)
    gc.disable()
    try:
        seconds = scheduler.medians(StepScheduler, max(rounds, 20))
    finally:
        gc.enable()
    rows = [
        Row(
            what=f"scheduler: {name}, {scheduler.MANY:,} waiting beside {scheduler.FEW}",
            value=many * 1e6,
            unit="µs",
            ratio=many / few,
            by_cpu=many / few,
            aim=scheduler.MOST_RATIO,
            peer=PEER.get(name, ""),
            details={"us": {scheduler.FEW: few * 1e6, scheduler.MANY: many * 1e6}},
        )
        for name, (few, many) in seconds.items()
        if name in PEER
    ]
    return rows + [
        Row(
            what=f"mean requests in a wave of {scheduler.SLOTS}: {name}",
            value=scheduler.occupancy(StepScheduler, mix()),
            unit="",
            peer=PEER_OCCUPANCY[name],
            timed=False,
        )
        for name, mix in scheduler.MIXES.items()
    ]
