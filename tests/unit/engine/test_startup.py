"""From created to ready, and every way in which that fails."""

from __future__ import annotations

import threading

import pytest

from stage_runtime.core.errors import (
    DeviceLost,
    EngineHung,
    ModelError,
    NotAdmitting,
    OutOfDeviceMemory,
    OutOfMemory,
)
from stage_runtime.engine.phase import Phase
from support.builders import EngineBuilder, a_request, held
from support.scripted import PATIENCE_S, Gate, ScriptedExecutor, Workshop


def test_an_engine_loads_warms_up_and_is_ready() -> None:
    loading, warming = Gate(), Gate()

    def build() -> ScriptedExecutor:
        loading.pass_through()
        executor = ScriptedExecutor()
        executor.hold(warming)
        return executor

    engine = EngineBuilder().executor(build).warmup(a_request("warm-up")).build()
    phases = [engine.phase]
    engine.start()
    loading.wait_arrival()
    phases.append(engine.phase)
    loading.open()
    warming.wait_arrival()
    phases.append(engine.phase)
    warming.open()
    engine.wait_ready(PATIENCE_S)
    phases.append(engine.phase)
    engine.close()
    assert phases == [Phase.CREATED, Phase.LOADING, Phase.WARMING, Phase.READY]


def test_nothing_is_admitted_before_it_is_ready() -> None:
    engine = EngineBuilder().build()
    with pytest.raises(NotAdmitting, match="starting"):
        engine.add([a_request("a")])
    with pytest.raises(NotAdmitting, match="isn't loaded"):
        _ = engine.capability


def test_a_warm_up_that_never_ends_is_seen_from_outside() -> None:
    """Case B83."""
    gate = Gate()
    engine = (
        EngineBuilder().prepare(lambda executor: executor.hold(gate)).warmup(a_request("warm-up")).build()
    )
    engine.start()
    gate.wait_arrival()
    with pytest.raises(EngineHung, match="still warming"):
        engine.wait_ready(0.01)
    progress = engine.progress()
    assert (engine.phase, progress.tick, progress.limit_s) == (Phase.WARMING, 1, 20.0)
    assert engine.snapshot().running == 1
    gate.open()
    engine.wait_ready(PATIENCE_S)
    engine.close()


def test_loading_counts_against_the_startup_timeout() -> None:
    gate = Gate()

    def build() -> ScriptedExecutor:
        gate.pass_through()
        return ScriptedExecutor()

    engine = EngineBuilder().executor(build).startup_timeout(0.5).build()
    engine.start()
    gate.wait_arrival()
    with pytest.raises(EngineHung, match=r"still loading after 0\.6 s"):
        engine.wait_ready(0.6)
    assert engine.progress().overdue
    gate.open()
    engine.close()


def test_warm_up_takes_the_path_of_every_request_and_leaves_nothing() -> None:
    """Case B83."""
    engine, executor = (
        EngineBuilder().step_mode().slots(4).warmup(a_request("one"), a_request("two", 2)).loaded()
    )
    assert executor.steps == {"one": [1, 2, 3, 4], "two": [1, 2]}
    assert executor.held == {}
    assert not any(held(engine).values())


def test_a_held_wave_does_not_hold_up_the_warm_up() -> None:
    with EngineBuilder().slots(4).max_wait(0.01).warmup(a_request("warm-up")).started() as (engine, executor):
        assert engine.phase is Phase.READY
        assert executor.steps == {"warm-up": [1, 2, 3, 4]}


def test_a_warm_up_request_that_fails_means_a_broken_model_and_everything_is_closed() -> None:
    """Case B83."""
    workshop = Workshop(lambda executor: executor.fail("warm-up", ValueError("nan"), at_step=2))
    engine = EngineBuilder().executor(workshop).warmup(a_request("warm-up")).build()
    engine.start()
    with pytest.raises(ModelError, match="warm-up request warm-up failed: ValueError: nan"):
        engine.wait_ready(PATIENCE_S)
    assert workshop.executor.closed == 1
    assert engine.phase is Phase.DEAD
    with pytest.raises(Exception, match="warm-up"):
        engine.add([a_request("a")])
    engine.close()


def test_a_warm_up_that_does_not_fit_into_memory_says_so() -> None:
    workshop = Workshop(lambda executor: executor.fail("warm-up", OutOfMemory("needs 24 GiB")))
    engine = EngineBuilder().executor(workshop).warmup(a_request("warm-up")).build()
    with pytest.raises(OutOfDeviceMemory, match="24 GiB"):
        engine.load()
    assert workshop.executor.closed == 1
    assert isinstance(engine.death, OutOfDeviceMemory)


def test_a_group_that_dies_of_the_warm_up_keeps_its_type() -> None:
    workshop = Workshop(lambda executor: executor.die(DeviceLost("illegal address")))
    engine = EngineBuilder().executor(workshop).warmup(a_request("warm-up")).build()
    with pytest.raises(DeviceLost, match="illegal address"):
        engine.load()
    assert (engine.phase, workshop.executor.closed) == (Phase.DEAD, 1)


def test_a_load_that_fails_is_raised_where_readiness_is_awaited() -> None:
    def build() -> ScriptedExecutor:
        raise FileNotFoundError("model_index.json")

    engine = EngineBuilder().executor(build).build()
    told: list[BaseException] = []
    engine.when_dead(told.append)
    engine.start()
    with pytest.raises(FileNotFoundError, match=r"model_index\.json"):
        engine.wait_ready(PATIENCE_S)
    engine.close()
    assert told == [engine.death]
    assert engine.phase is Phase.DEAD


def test_the_executor_is_built_in_the_loop_thread() -> None:
    names: list[str] = []

    def build() -> ScriptedExecutor:
        names.append(threading.current_thread().name)
        return ScriptedExecutor()

    engine = EngineBuilder().executor(build).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    engine.close()
    assert names == ["engine-loop"]
