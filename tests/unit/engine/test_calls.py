"""A call from Python waits for its pictures, and not for ever for a device that gives none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

import pytest

from stage_runtime.calls import Call
from stage_runtime.core.errors import EngineHung
from stage_runtime.core.outcome import Output
from support.builders import EngineBuilder, some_requests
from support.scripted import PATIENCE_S, ManualClock


class OverdueClock(ManualClock):
    """Moves by half a second with every look, once it was set going."""

    going = False

    def __call__(self) -> float:
        self.advance(0.5 * self.going)
        return self.now_s


def test_each_output_comes_with_the_place_of_its_request() -> None:
    with EngineBuilder().queue(2).started() as (engine, _):
        steps: list[tuple[int, int]] = []
        outputs: dict[int, Output] = {}
        call = Call(engine, some_requests("abcde"), Semaphore(2))
        call.run(outputs.__setitem__, lambda done, total: steps.append((done, total)))
        assert sorted(outputs) == [0, 1, 2, 3, 4]
        assert steps[-1] == (20, 20)


def test_a_tick_that_hangs_ends_the_call_with_that_error() -> None:
    clock = OverdueClock()
    with (
        EngineBuilder().clock(clock).startup_timeout(2.0).started() as (engine, executor),
        ThreadPoolExecutor(1) as threads,
    ):
        gate = executor.block()
        waiting = threads.submit(
            Call(engine, some_requests("ab"), Semaphore(2)).run, lambda _place, _output: None, False
        )
        gate.wait_arrival()
        clock.going = True
        with pytest.raises(EngineHung, match="has made no progress"):
            waiting.result(PATIENCE_S)
        gate.open()
