"""The end of an engine: it always comes, it may come more than once, and it leaves nobody waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError, NotAdmitting
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase
from support.builders import EngineBuilder, a_request, some_requests
from support.scripted import PATIENCE_S, Gate, ScriptedExecutor


def test_closing_ends_what_runs_and_what_waits_with_an_error() -> None:
    engine, executor = EngineBuilder().loaded()
    streams = engine.add(some_requests("ab"))
    engine.tick()
    engine.close()
    for stream in streams:
        with pytest.raises(NotAdmitting, match="closed"):
            stream.result(0)
    assert (engine.phase, executor.closed, executor.held) == (Phase.CLOSED, 1, {})


def test_a_closed_engine_admits_nothing_and_carries_out_nothing() -> None:
    engine, _ = EngineBuilder().loaded()
    engine.close()
    with pytest.raises(NotAdmitting, match="closed"):
        engine.add([a_request("a")])
    with pytest.raises(NotAdmitting, match="closed"):
        engine.control(StopEarly("a")).result(0)
    assert not engine.tick()
    engine.abort("a")


def test_a_control_call_that_was_not_carried_out_fails_on_close() -> None:
    engine, _ = EngineBuilder().loaded()
    call = engine.control(StopEarly("a"))
    engine.close()
    with pytest.raises(NotAdmitting, match="closed"):
        call.result(0)


def test_an_engine_that_never_started_can_be_closed_and_then_does_not_start() -> None:
    engine = EngineBuilder().build()
    engine.close()
    with pytest.raises(InternalError, match="closed"):
        engine.start()
    with pytest.raises(NotAdmitting, match="closed before it was ready"):
        engine.wait_ready(0)


def test_an_engine_starts_once() -> None:
    engine, _ = EngineBuilder().loaded()
    with pytest.raises(InternalError, match="starts once"):
        engine.start()


def test_closing_twice_is_closing_once() -> None:
    with EngineBuilder().started() as (engine, executor):
        engine.close()
        engine.close()
    assert (engine.phase, executor.closed) == (Phase.CLOSED, 1)


def test_closing_after_death_keeps_the_reason() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.die(EngineDeadError("killed"))
    streams = engine.add([a_request("a")])
    engine.tick()
    engine.close()
    assert (engine.phase, str(engine.death), executor.closed) == (Phase.DEAD, "killed", 1)
    assert streams[0].ended


def test_several_threads_may_close_at_once() -> None:
    with EngineBuilder().started() as (engine, executor):
        streams = engine.add([a_request("a", steps=10**9)])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: engine.close(), range(8)))
        assert executor.closed == 1
        assert streams[0].ended


def test_the_loop_thread_may_close_its_own_engine() -> None:
    with EngineBuilder().started() as (engine, executor):
        closed = threading.Event()

        def close(death: BaseException) -> None:
            engine.close()
            closed.set()

        engine.when_dead(close)
        executor.die()
        streams = engine.add([a_request("a")])
        assert closed.wait(PATIENCE_S)
        assert streams[0].ended
    assert executor.closed == 1


def test_the_executor_is_closed_by_the_thread_that_built_it() -> None:
    threads: list[str] = []

    class Closing(ScriptedExecutor):
        def close(self) -> None:
            threads.append(threading.current_thread().name)
            super().close()

    engine = EngineBuilder().executor(Closing).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    engine.close()
    assert threads == ["engine-loop"]


def test_an_executor_that_fails_to_close_does_not_keep_the_engine_open() -> None:
    class Stubborn(ScriptedExecutor):
        def close(self) -> None:
            raise OSError("busy")

    engine = EngineBuilder().executor(Stubborn).build()
    engine.load()
    engine.close()
    assert engine.phase is Phase.CLOSED


# A loop that is stuck


def stuck(engine: Engine, executor: ScriptedExecutor) -> Gate:
    gate = executor.block()
    streams = engine.add([a_request("stuck")])
    gate.wait_arrival()
    assert not streams[0].ended
    return gate


def test_closing_over_a_stuck_loop_is_bounded_closes_the_executor_and_is_reported() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = stuck(engine, executor)
        with pytest.raises(EngineHung, match=r"stuck in tick 1 for .* its executor was closed from outside"):
            engine.close(timeout_s=0.05)
        assert executor.closed == 1
        gate.open()
        engine.close()
        assert engine.phase is Phase.CLOSED


def test_streams_of_a_stuck_loop_end_without_waiting_for_it() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        (stream,) = engine.add([a_request("a")])
        gate.wait_arrival()
        closer = threading.Thread(target=engine.close, name="closer")
        closer.start()
        with pytest.raises(NotAdmitting):
            stream.result(10)
        gate.open()
        closer.join(PATIENCE_S)
        assert not closer.is_alive()


def test_a_loop_that_is_through_its_ticks_is_waited_for_and_is_not_stuck() -> None:
    """A busy machine may take longer for the executor's end than a tick would be allowed."""
    gate = Gate()

    class Slow(ScriptedExecutor):
        def close(self) -> None:
            gate.pass_through()
            super().close()

    engine = EngineBuilder().executor(Slow).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    closer = ThreadPoolExecutor(1)
    closed = closer.submit(engine.close, 0.01)
    gate.wait_arrival()
    with pytest.raises(TimeoutError):
        closed.result(0.3)
    gate.open()
    assert closed.result(PATIENCE_S) is None
    closer.shutdown()


# Closing while it starts


def test_closing_during_the_load_ends_the_start() -> None:
    gate = Gate()

    def slow_build() -> ScriptedExecutor:
        gate.pass_through()
        return ScriptedExecutor()

    engine = EngineBuilder().executor(slow_build).build()
    engine.start()
    gate.wait_arrival()
    closer = threading.Thread(target=engine.close, name="closer")
    closer.start()
    with pytest.raises(NotAdmitting, match="closed before it was ready"):
        engine.wait_ready(PATIENCE_S)
    gate.open()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert engine.phase is Phase.CLOSED


def test_closing_during_the_warm_up_ends_the_start() -> None:
    gates: list[Gate] = []
    built = threading.Event()

    def prepare(executor: ScriptedExecutor) -> None:
        gates.append(executor.block())
        built.set()

    engine = EngineBuilder().prepare(prepare).warmup(a_request("warm-up", steps=10**9)).build()
    engine.start()
    assert built.wait(PATIENCE_S)
    gates[0].wait_arrival()
    closer = threading.Thread(target=engine.close, name="closer")
    closer.start()
    with pytest.raises(NotAdmitting, match="closed before it was ready"):
        engine.wait_ready(PATIENCE_S)
    gates[0].open()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert (engine.phase, engine.death) == (Phase.CLOSED, None)


# Draining


def test_draining_refuses_newcomers_and_finishes_what_is_there() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        (stream,) = engine.add([a_request("a")])
        gate.wait_arrival()
        engine.close_admission()
        assert engine.phase is Phase.DRAINING
        with pytest.raises(NotAdmitting, match="draining"):
            engine.add([a_request("b")])
        gate.open()
        assert engine.drain(PATIENCE_S)
        assert stream.result(0).steps == 4
        assert engine.snapshot().running == 0


def test_a_drain_that_runs_out_of_time_says_so() -> None:
    engine, _ = EngineBuilder().loaded()
    streams = engine.add([a_request("a")])
    assert not engine.drain(0.0)
    assert not streams[0].ended


def test_an_idle_engine_has_drained_at_once() -> None:
    engine, _ = EngineBuilder().loaded()
    assert engine.drain(0.0)


def test_a_drain_that_is_cut_short_by_closing_has_not_succeeded() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        with ThreadPoolExecutor(1) as pool:
            engine.close_admission()
            draining = pool.submit(engine.drain, PATIENCE_S)
            closing = threading.Thread(target=engine.close, name="closer")
            closing.start()
            assert draining.result(PATIENCE_S) is False
            gate.open()
            closing.join(PATIENCE_S)
        assert streams[0].ended
