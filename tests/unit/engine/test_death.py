"""What happens when the group dies, in whatever way: nobody is left waiting, and nobody is let in."""

from __future__ import annotations

import pytest

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import (
    DeviceLost,
    EngineDeadError,
    EngineHung,
    InternalError,
    InvalidRequest,
    StageError,
)
from stage_runtime.core.outcome import Completed, Failed, Progressed
from stage_runtime.engine.phase import Phase
from support.builders import EngineBuilder, a_request, some_requests, tick_out
from support.scripted import PATIENCE_S, ManualClock


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_death_ends_every_stream_with_its_typed_error() -> None:
    engine, executor = EngineBuilder().slots(2).loaded()
    streams = engine.add(some_requests("abc"))
    engine.tick()
    executor.die(DeviceLost("illegal address"))
    engine.tick()
    for stream in streams:
        with pytest.raises(DeviceLost, match="illegal address"):
            stream.result(0)


def test_a_dead_engine_refuses_at_once_and_says_why() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    executor.die(EngineDeadError("rank 1 was killed"))
    engine.tick()
    with pytest.raises(EngineDeadError, match="rank 1 was killed"):
        engine.add([a_request("b")])
    assert engine.phase is Phase.DEAD
    assert str(engine.death) == "rank 1 was killed"
    assert stream.ended


def test_a_dead_engine_does_not_touch_its_executor_again() -> None:
    engine, executor = EngineBuilder().loaded()
    streams = engine.add([a_request("a")])
    executor.die()
    engine.tick()
    waves = list(executor.waves)
    assert not engine.tick()
    engine.abort("a")
    assert executor.waves == waves
    assert streams[0].ended


def test_control_calls_fail_when_the_engine_is_dead() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.die(EngineDeadError("killed"))
    pending = engine.control(StopEarly("a"))
    engine.tick()
    late = engine.control(StopEarly("a"))
    for call in (pending, late):
        with pytest.raises(EngineDeadError, match="killed"):
            call.result(0)


def test_whoever_asked_is_told_of_the_death_once() -> None:
    engine, executor = EngineBuilder().loaded()
    told: list[BaseException] = []
    engine.when_dead(told.append)
    streams = engine.add([a_request("a")])
    executor.die(EngineDeadError("killed"))
    engine.tick()
    engine.tick()
    engine.close()
    assert told == [engine.death]
    engine.when_dead(told.append)
    assert told == [engine.death, engine.death]
    assert streams[0].ended


def test_streams_have_ended_when_the_death_is_told() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    ended: list[bool] = []
    engine.when_dead(lambda death: ended.append(stream.ended))
    executor.die()
    engine.tick()
    assert ended == [True]


def test_any_other_error_out_of_the_executor_is_a_broken_law_and_ends_the_same_way() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    executor.die(KeyError("slot"))
    engine.tick()
    assert isinstance(engine.death, InternalError)
    assert isinstance(engine.death.__cause__, KeyError)
    outcome = stream.take()
    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (503, "engine_dead")


def test_a_requests_error_that_comes_without_its_request_is_a_broken_law_too() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.die(InvalidRequest("whose?"))
    streams = engine.add([a_request("a")])
    engine.tick()
    assert isinstance(engine.death, InternalError)
    assert streams[0].ended


def test_an_error_out_of_a_control_call_that_is_nobodys_fault_is_death() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.die(ZeroDivisionError("division by zero"))
    call = engine.control(StopEarly("a"))
    engine.tick()
    with pytest.raises(StageError, match="division by zero"):
        call.result(0)
    assert engine.phase is Phase.DEAD


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_even_the_end_of_the_loop_thread_leaves_no_stream_open(error: BaseException) -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        (stream,) = engine.add([a_request("a")])
        gate.wait_arrival()
        executor.die(error)
        gate.open()
        with pytest.raises(EngineDeadError):
            stream.result(10)
        assert engine.phase is Phase.DEAD


def test_a_dead_group_is_closed_by_the_thread_that_used_it() -> None:
    with EngineBuilder().started() as (engine, executor):
        executor.die()
        (stream,) = engine.add([a_request("a")])
        with pytest.raises(EngineDeadError):
            stream.result(10)
        engine.close()
        assert executor.closed == 1
        assert engine.phase is Phase.DEAD


def test_a_health_check_finds_a_group_that_died_while_idle() -> None:
    with EngineBuilder().started() as (engine, executor):
        engine.check_health()
        executor.die(EngineDeadError("rank 0 was killed"))
        with pytest.raises(EngineDeadError, match="rank 0 was killed"):
            engine.check_health()
        with pytest.raises(EngineDeadError, match="rank 0 was killed"):
            engine.add([a_request("a")])
        assert engine.phase is Phase.DEAD


def test_a_health_check_that_finds_a_tick_hanging_ends_every_stream_with_that_error() -> None:
    clock = ManualClock()
    with EngineBuilder().clock(clock).started() as (engine, executor):
        gate = executor.block()
        streams = engine.add(some_requests("ab"))
        gate.wait_arrival()
        for _ in range(43):
            engine.check_health()
            clock.advance(0.5)
        with pytest.raises(
            EngineHung, match=r"tick 1 has made no progress for 21\.5 s; expected within 20\.0 s"
        ):
            engine.check_health()
        for stream in streams:
            with pytest.raises(EngineHung):
                stream.result(0)
        assert isinstance(engine.death, EngineHung)
        gate.open()


def test_a_process_that_was_frozen_in_a_tick_lives_on_when_it_thaws() -> None:
    clock = ManualClock()
    with EngineBuilder().clock(clock).started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        engine.check_health()
        clock.advance(1000.0)
        engine.check_health()
        gate.open()
        assert isinstance(streams[0].result(PATIENCE_S), Completed)
        assert engine.phase is Phase.READY


def test_a_tick_without_news_over_which_the_process_was_frozen_is_no_hang() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock).startup_timeout(30.0).loaded()
    executor.stall("a")
    (stream,) = engine.add([a_request("a")])
    engine.tick()
    clock.advance(1000.0)
    engine.tick()
    executor.unstall("a")
    tick_out(engine)
    assert isinstance(stream.result(0), Completed)


def test_a_tick_that_outlasts_the_close_of_its_engine_is_no_death() -> None:
    clock = ManualClock()
    with EngineBuilder().clock(clock).started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        with pytest.raises(EngineHung, match="stuck"):
            engine.close(0.01)
        clock.advance(100.0)
        engine.check_health()
        assert engine.death is None
        assert streams[0].ended
        gate.open()


def test_a_healthy_engine_that_was_closed_is_not_dead() -> None:
    engine, _ = EngineBuilder().loaded()
    engine.close()
    engine.check_health()
    assert engine.death is None


def test_requests_that_never_move_are_a_hang() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock, step_s=1.0).startup_timeout(30.0).loaded()
    executor.stall("a")
    (stream,) = engine.add([a_request("a")])
    for _ in range(30):
        engine.tick()
    assert engine.phase is Phase.READY
    tick_out(engine)
    assert isinstance(engine.death, EngineHung)
    with pytest.raises(EngineHung, match=r"nothing has moved for 33\.0 s; expected within 30\.0 s"):
        stream.result(0)


def test_one_request_that_moves_is_enough_to_be_no_hang() -> None:
    clock = ManualClock()
    engine, executor = (
        EngineBuilder().step_mode().slots(2).clock(clock, step_s=1.0).startup_timeout(5.0).loaded()
    )
    executor.stall("a")
    stalled, moving = engine.add([a_request("a"), a_request("b", steps=40)])
    for _ in range(39):
        engine.tick()
    assert engine.phase is Phase.READY
    assert moving.take() == Progressed("b", 39, 40)
    assert not stalled.ended


def test_time_spent_idle_is_no_hang() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock, step_s=1.0).startup_timeout(30.0).loaded()
    clock.advance(1000.0)
    executor.stall("a")
    (stream,) = engine.add([a_request("a")])
    engine.tick()
    executor.unstall("a")
    tick_out(engine)
    assert isinstance(stream.result(0), Completed)
