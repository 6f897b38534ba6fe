"""A pause is a barrier: running requests stay where they are, nothing is aborted, and all go on at resume."""

from __future__ import annotations

from stage_runtime.core.control import Pause, Resume, Sleep
from stage_runtime.core.outcome import Completed
from support.builders import EngineBuilder, a_request, tick_out
from support.scripted import ManualClock


def test_while_paused_running_requests_stay_where_they_are() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    paused = engine.control(Pause())
    engine.tick()
    assert paused.result(0) is None
    before = list(executor.steps["a"])
    executor.wake()
    engine.tick()
    assert executor.steps["a"] == before
    assert not stream.ended


def test_paused_requests_go_on_at_resume() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=5)])
    engine.tick()
    engine.control(Pause())
    engine.tick()
    engine.control(Resume())
    executor.wake()
    engine.tick()
    tick_out(engine)
    assert isinstance(stream.result(0), Completed)
    assert executor.steps["a"] == [1, 2, 3, 4, 5]


def test_a_request_that_comes_while_paused_waits() -> None:
    engine, executor = EngineBuilder().loaded()
    engine.control(Pause())
    engine.tick()
    (stream,) = engine.add([a_request("a", steps=1)])
    engine.tick()
    assert (engine.snapshot().waiting, executor.waves) == (1, [])
    engine.control(Resume())
    engine.tick()
    tick_out(engine)
    assert isinstance(stream.result(0), Completed)


def test_an_abort_while_paused_is_terminal_and_told_to_the_runner() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    engine.control(Pause())
    engine.tick()
    engine.abort("a")
    engine.tick()
    assert stream.ended
    assert executor.held == {}


def test_a_long_pause_is_no_hang() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock).loaded()
    (stream,) = engine.add([a_request("a", steps=5)])
    engine.tick()
    engine.control(Pause())
    engine.tick()
    for _ in range(10):
        clock.advance(1e5)
        executor.wake()
        engine.tick()
        engine.check_health()
    engine.control(Resume())
    executor.wake()
    engine.tick()
    tick_out(engine)
    assert isinstance(stream.result(0), Completed)


def test_a_call_that_takes_its_time_during_a_request_is_no_hang() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock).loaded()
    engine.add([a_request("a", steps=50)])
    engine.tick()
    seen: list[bool] = []

    def look() -> None:
        clock.advance(500.0)
        seen.append(engine.progress().overdue)

    executor.meanwhile = look
    engine.control(Sleep(2))
    engine.tick()
    assert seen == [False]
