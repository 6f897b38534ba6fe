"""Asynchronous output: a computed request frees its slot, and is its scheduler's until its output is delivered."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import EngineDeadError, EngineHung
from stage_runtime.core.outcome import Aborted, Completed, Computed, Failed
from support.builders import EngineBuilder, a_request, tick_out
from support.scripted import ManualClock, pixel


def test_a_computed_request_frees_its_slot_for_the_next() -> None:
    engine, executor = EngineBuilder().slots(1).loaded()
    first, second = engine.add([a_request("a", steps=50), a_request("b", steps=1)])
    engine.tick()
    executor.say_late(Computed("a"))
    executor.stall("a")
    for _ in range(5):
        engine.tick()
    assert isinstance(second.result(0), Completed)
    assert not first.ended
    assert engine.snapshot().materialising == 1


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
def test_a_computed_request_ends_once_with_its_output() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    executor.stall("a")
    executor.say_late(Computed("a"))
    engine.tick()
    executor.say_late(Completed("a", pixel(7), 50))
    engine.tick()
    assert list(stream)[-1] == Completed("a", pixel(7), 50)
    assert engine.snapshot().live == 0


def test_an_output_that_can_not_be_packed_fails_its_request_with_the_cause() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    executor.stall("a")
    executor.say_late(Computed("a"))
    engine.tick()
    executor.say_late(Failed("a", "the output can't be packed: no room", 507, "out_of_memory"))
    engine.tick()
    assert list(stream)[-1] == Failed("a", "the output can't be packed: no room", 507, "out_of_memory")


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_an_abort_while_materialising_is_terminal_and_the_late_output_is_dropped() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    executor.stall("a")
    executor.say_late(Computed("a"))
    engine.tick()
    engine.abort("a")
    executor.say_late(Completed("a", pixel(7), 50))
    tick_out(engine)
    assert list(stream)[-1] == Aborted("a")
    assert executor.held == {}


def test_an_output_that_never_comes_is_a_hang_also_while_others_move() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock).loaded()
    lost, _ = engine.add([a_request("a", steps=1000), a_request("b", steps=1000)])
    engine.tick()
    executor.stall("a")
    executor.say_late(Computed("a"))
    engine.tick()
    for _ in range(30):
        clock.advance(1.0)
        engine.tick()
    assert isinstance(engine.death, EngineHung)
    assert "the output of request a has been on its way" in str(engine.death)
    assert isinstance(list(lost)[-1], Failed)


def test_a_poll_waits_for_an_output_no_longer_than_until_it_counts_as_lost() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().clock(clock).startup_timeout(20.0).loaded()
    (_stream,) = engine.add([a_request("a", steps=50)])
    engine.tick()
    executor.stall("a")
    executor.say_late(Computed("a"))
    engine.tick()
    computed_s = clock.now_s
    for _ in range(3):
        clock.advance(5.0)
        engine.tick()
        assert executor.deadlines[-1] == computed_s + 20.0


def test_a_group_that_dies_while_nobody_polls_fails_the_engine_at_once() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.die_unpolled(EngineDeadError("rank 1 was killed by SIGKILL", rank=1))
    assert engine.death is not None
    with pytest.raises(EngineDeadError, match="rank 1 was killed"):
        engine.add([a_request("a")])
