"""The loop with its thread: what is answered during a long tick, and what happens between ticks."""

from __future__ import annotations

import threading

import pytest

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import AdmissionFull, InvalidRequest
from stage_runtime.core.outcome import Aborted, Completed
from stage_runtime.engine.phase import Progress
from stage_runtime.processes.wakeup import Wakeup
from support.builders import EngineBuilder, a_request, some_requests, tick_out
from support.scripted import PATIENCE_S, ManualClock, pixel

# During a long tick


def test_an_abort_is_terminal_at_once_while_a_long_tick_runs() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        running, waiting = engine.add(some_requests("ab"))
        gate.wait_arrival()
        engine.abort("b")
        engine.abort("a")
        assert list(waiting) == [Aborted("b")]
        assert list(running) == [Aborted("a")]
        gate.open()


def test_a_full_line_refuses_at_once_while_a_long_tick_runs() -> None:
    with EngineBuilder().queue(1).started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        streams += engine.add([a_request("b")])
        with pytest.raises(AdmissionFull):
            engine.add([a_request("c")])
        assert (engine.snapshot().running, engine.snapshot().waiting) == (1, 1)
        gate.open()
        assert all(isinstance(stream.result(10), Completed) for stream in streams)


def test_the_progress_of_a_long_tick_is_seen_from_outside() -> None:
    clock = ManualClock()
    with EngineBuilder().clock(clock).started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        clock.advance(7.0)
        assert engine.progress() == Progress(1, 7.0, 20.0)
        assert not engine.progress().overdue
        clock.advance(14.0)
        assert engine.progress().overdue
        gate.open()
        streams[0].result(10)


def test_an_idle_engine_is_never_overdue() -> None:
    clock = ManualClock()
    engine, _ = EngineBuilder().clock(clock).loaded()
    streams = engine.add([a_request("a", steps=1)])
    tick_out(engine)
    clock.advance(1e6)
    assert engine.progress() == Progress(2, 0.0, None)
    assert streams[0].ended


# Between ticks


def test_a_control_call_is_carried_out_between_two_ticks() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    engine.tick()
    call = engine.control(StopEarly("a"))
    assert not call.done()
    tick_out(engine)
    assert call.result(0) is None
    assert stream.result(0) == Completed("a", pixel(0), 2)
    assert executor.calls == [StopEarly("a")]


def test_a_control_call_that_is_refused_harms_nobody() -> None:
    with EngineBuilder().started() as (engine, _):
        with pytest.raises(InvalidRequest, match="isn't running"):
            engine.control(StopEarly("unknown")).result(PATIENCE_S)
        (stream,) = engine.add([a_request("a")])
        assert stream.result(10).steps == 4


def test_a_control_call_that_was_cancelled_is_not_carried_out() -> None:
    engine, executor = EngineBuilder().loaded()
    assert engine.control(StopEarly("a")).cancel()
    engine.tick()
    assert executor.calls == []


def test_a_control_call_does_not_wait_for_a_held_wave() -> None:
    with EngineBuilder().slots(4).max_wait(600.0).started() as (engine, _):
        streams = engine.add([a_request("a")])
        assert engine.outstanding().result(PATIENCE_S)["records"] == 1
        assert not streams[0].ended


def test_requests_from_many_threads_are_all_served() -> None:
    with EngineBuilder().step_mode().slots(4).queue(200).started() as (engine, _):
        results: list[Completed] = []

        def ask(caller: int) -> None:
            for number in range(20):
                (stream,) = engine.add([a_request(f"{caller}.{number}", steps=2)])
                results.append(stream.result(PATIENCE_S))

        callers = [threading.Thread(target=ask, args=(n,), name=f"caller-{n}") for n in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(PATIENCE_S)
        assert len(results) == 160
        assert not any(engine.outstanding().result(PATIENCE_S).values())


# The wakeup


def test_a_ring_before_the_wait_is_not_lost() -> None:
    wakeup = Wakeup()
    wakeup.ring()
    wakeup.wait(None)


def test_many_rings_spare_one_wait_only() -> None:
    wakeup = Wakeup()
    for _ in range(3):
        wakeup.ring()
    wakeup.wait(None)
    woken = threading.Event()

    def wait_again() -> None:
        wakeup.wait(None)
        woken.set()

    waiter = threading.Thread(target=wait_again, name="waiter")
    waiter.start()
    assert not woken.wait(0.05)
    wakeup.ring()
    assert woken.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)
