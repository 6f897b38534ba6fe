"""What an operation costs must not depend on how many requests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

from stage_runtime.core.outcome import Completed
from stage_runtime.sched.base import BaseScheduler
from support.builders import EngineBuilder, a_request
from support.scripted import pixel

FEW, MANY, ROUNDS = 100, 10_000, 45
# Anything that walks the line costs a hundredfold. `benchmarks/engine/scheduler.py` measures finely.
MOST = 10


def finish(scheduler: BaseScheduler, number: int) -> None:
    """A tick in which one ends and the next in line takes its slot."""
    scheduler.update([Completed(f"r{number}", pixel(0), 4)], 0.0)
    scheduler.schedule(0.0)


def abort(scheduler: BaseScheduler, number: int) -> None:
    """One in the middle of the line is aborted."""
    scheduler.abort(f"r{scheduler.snapshot(0.0).queue_limit // 2 + number}", 0.0)


def seconds(operation: Callable[[BaseScheduler, int], None], waiting: int) -> float:
    scheduler = EngineBuilder().step_mode().queue(waiting + 1).scheduler()
    scheduler.add([a_request(f"r{number}") for number in range(waiting + 1)], 0.0)
    scheduler.schedule(0.0)
    taken = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        operation(scheduler, number)
        taken.append(time.perf_counter() - began)
    return median(taken)


@pytest.mark.alone("it measures")
@pytest.mark.parametrize("operation", [finish, abort])
def test_a_long_line_makes_nothing_slower(operation: Callable[[BaseScheduler, int], None]) -> None:
    assert seconds(operation, MANY) < MOST * seconds(operation, FEW)
