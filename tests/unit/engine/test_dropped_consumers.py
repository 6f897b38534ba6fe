"""A consumer may go away at any moment, with or without a word. Nothing is kept for it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from stage_runtime.core.outcome import Completed
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.streams import Stream
from support.builders import EngineBuilder, a_request, held, some_requests, tick_out

pytestmark = pytest.mark.invariant("DIFF-RUNTIME-INV-003")


def before_it_runs(engine: Engine) -> None:
    """It waits, behind another one."""


def while_it_runs(engine: Engine) -> None:
    engine.tick()
    engine.tick()


def when_it_is_done(engine: Engine) -> None:
    tick_out(engine)


PHASES = pytest.mark.parametrize("phase", [before_it_runs, while_it_runs, when_it_is_done])


@PHASES
def test_a_forgotten_stream_leaves_nothing_behind(phase: Callable[[Engine], None]) -> None:
    engine, _ = EngineBuilder().slots(2).loaded()
    streams = engine.add(some_requests("abc"))
    phase(engine)
    del streams
    gc.collect()
    tick_out(engine)
    assert not any(held(engine).values())


@PHASES
def test_a_closed_stream_leaves_nothing_behind(phase: Callable[[Engine], None]) -> None:
    engine, _ = EngineBuilder().slots(2).loaded()
    streams = engine.add(some_requests("abc"))
    phase(engine)
    for stream in streams:
        stream.close()
        stream.close()
    tick_out(engine)
    assert not any(held(engine).values())


@PHASES
def test_a_forgotten_stream_frees_its_place_in_the_line_for_the_next_caller(
    phase: Callable[[Engine], None],
) -> None:
    engine, _ = EngineBuilder().slots(1).queue(3).loaded()
    streams = engine.add(some_requests("abc"))
    phase(engine)
    del streams
    gc.collect()
    assert len(engine.add(some_requests("xyz"))) == 3


class Client:
    """A consumer that only the garbage collector can free."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.itself = self


def test_a_stream_in_a_cycle_is_noticed_by_the_garbage_collector() -> None:
    engine, _ = EngineBuilder().loaded()
    Client(*engine.add([a_request("a")]))
    engine.tick()
    gc.collect()
    tick_out(engine)
    assert not any(held(engine).values())


def collect() -> None:
    gc.collect()


def test_a_collection_in_the_midst_of_the_engines_own_work_does_no_harm() -> None:
    engine, _ = EngineBuilder().step_mode().slots(3).loaded()
    first, doomed, last = engine.add(some_requests("abc"))
    first.subscribe(collect)
    Client(doomed)
    del doomed
    tick_out(engine)
    assert (first.result(0).steps, last.result(0).steps) == (4, 4)
    assert not any(held(engine).values())


def test_forgetting_an_old_stream_spares_a_later_request_with_the_same_id() -> None:
    engine, _ = EngineBuilder().loaded()
    old = engine.add([a_request("a")])
    tick_out(engine)
    (new,) = engine.add([a_request("a")])
    old[0].close()
    del old
    gc.collect()
    tick_out(engine)
    assert new.result(0).steps == 4


def test_a_consumer_that_goes_away_during_a_long_tick_is_cleaned_up_after_it() -> None:
    with EngineBuilder().started() as (engine, executor):
        gate = executor.block()
        streams = engine.add([a_request("a")])
        gate.wait_arrival()
        del streams
        gc.collect()
        assert engine.snapshot().running == 0
        gate.open()
        (later,) = engine.add([a_request("later")])
        assert isinstance(later.result(10), Completed)
        assert not any(engine.outstanding().result(10).values())
        assert executor.steps["a"] == [1]
