"""The life of requests in an engine that the test ticks by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stage_runtime.core.errors import AdmissionFull, InvalidRequest, RequestFailed
from stage_runtime.core.outcome import Aborted, Completed, Progressed
from support.builders import EngineBuilder, a_request, held, some_requests, tick_out
from support.builders import RequestBuilder as Build
from support.scripted import ManualClock, pixel


def test_a_request_gives_progress_and_then_its_output() -> None:
    engine, _ = EngineBuilder().loaded()
    (stream,) = engine.add([Build("a").steps(2).seed(7).build()])
    engine.tick()
    assert stream.take() == Progressed("a", 1, 2)
    tick_out(engine)
    assert list(stream) == [Progressed("a", 2, 2), Completed("a", pixel(7), 2)]


@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
@pytest.mark.invariant("BATCH-INV-004")
def test_requests_of_different_lengths_each_end_after_their_own_steps_when_one_is_cancelled() -> None:
    engine, executor = EngineBuilder().step_mode().slots(4).loaded()
    (three,) = engine.add([Build("three").steps(3).seed(3).build()])
    engine.tick()
    (five,) = engine.add([Build("five").steps(5).seed(5).build()])
    engine.tick()
    eights = engine.add([Build(i).steps(8).seed(seed).build() for i, seed in (("x", 81), ("y", 82))])
    engine.tick()
    engine.abort("five")
    tick_out(engine)
    assert three.result(0) == Completed("three", pixel(3), 3)
    assert [stream.result(0) for stream in eights] == [
        Completed("x", pixel(81), 8),
        Completed("y", pixel(82), 8),
    ]
    assert five.take() == Progressed("five", 2, 5)
    assert five.take() == Aborted("five")
    assert executor.steps == {"three": [1, 2, 3], "five": [1, 2], "x": [*range(1, 9)], "y": [*range(1, 9)]}


@pytest.mark.invariant("DIFF-RUNTIME-INV-002")
def test_the_executor_gets_what_the_scheduler_decided_and_nothing_else() -> None:
    engine, executor = EngineBuilder().step_mode().slots(2).loaded()
    streams = engine.add(some_requests("abc", steps=1))
    tick_out(engine)
    assert [set(wave.scheduled_ids) for wave in executor.waves] == [{"a", "b"}, {"c"}, set()]
    assert [set(wave.finished_ids) for wave in executor.waves] == [set(), {"a", "b"}, {"c"}]
    assert all(stream.ended for stream in streams)


def test_the_abort_of_a_waiting_request_is_terminal_at_once_on_an_idle_engine() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    engine.abort("a")
    assert list(stream) == [Aborted("a")]
    assert not engine.tick()
    assert executor.waves == []


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_the_runner_forgets_an_aborted_request_without_further_traffic() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    engine.tick()
    engine.abort("a")
    assert stream.ended
    assert executor.held == {"a": 1}
    engine.tick()
    assert executor.held == {}


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_the_runner_forgets_a_failed_request_without_further_traffic() -> None:
    engine, executor = EngineBuilder().loaded()
    executor.fail("a", ValueError("nan"), at_step=2)
    (stream,) = engine.add([a_request("a")])
    tick_out(engine)
    assert stream.ended
    assert executor.held == {}


@pytest.mark.parametrize("step_mode", [True, False], ids=["step mode", "request mode"])
def test_the_failure_of_one_request_leaves_its_neighbours_alone(step_mode: bool) -> None:
    builder = EngineBuilder().slots(3)
    engine, executor = (builder.step_mode() if step_mode else builder).loaded()
    executor.fail("b", InvalidRequest("too few frames", "num_frames"), at_step=2)
    a, b, c = engine.add(some_requests("abc"))
    tick_out(engine)
    assert (a.result(0).steps, c.result(0).steps) == (4, 4)
    with pytest.raises(InvalidRequest, match="too few frames"):
        b.result(0)


def test_many_failures_at_once_leave_the_engine_serving() -> None:
    engine, executor = EngineBuilder().step_mode().slots(8).loaded()
    for request_id in "abcdefgh":
        executor.fail(request_id, ValueError("bad"))
    streams = engine.add(some_requests("abcdefgh"))
    tick_out(engine)
    for stream in streams:
        with pytest.raises(RequestFailed, match="bad"):
            stream.result(0)
    (later,) = engine.add([a_request("later")])
    tick_out(engine)
    assert later.result(0).steps == 4


def test_a_request_that_does_not_move_is_waited_for() -> None:
    engine, executor = EngineBuilder().step_mode().slots(2).loaded()
    a, b = engine.add(some_requests("ab", steps=2))
    executor.stall("a")
    for _ in range(5):
        engine.tick()
    assert (a.ended, b.ended) == (False, True)
    executor.unstall("a")
    tick_out(engine)
    assert a.result(0).steps == 2


def test_a_late_outcome_of_an_aborted_request_reaches_nobody() -> None:
    engine, executor = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a")])
    engine.tick()
    engine.abort("a")
    executor.say_late(Completed("a", pixel(0), 4))
    (other,) = engine.add([a_request("b")])
    tick_out(engine)
    assert list(stream)[-1] == Aborted("a")
    assert other.result(0).steps == 4


def test_aborting_twice_or_what_is_unknown_or_what_has_ended_changes_nothing() -> None:
    engine, _ = EngineBuilder().loaded()
    (stream,) = engine.add([a_request("a", steps=1)])
    tick_out(engine)
    for request_id in ("a", "a", "unknown"):
        engine.abort(request_id)
    assert stream.result(0).steps == 1
    assert not any(held(engine).values())


@pytest.mark.invariant("BATCH-INV-003")
def test_many_threads_get_exactly_as_many_places_as_there_are() -> None:
    engine, _ = EngineBuilder().queue(8).loaded()

    def ask(number: int) -> object:
        try:
            return engine.add([a_request(f"r{number}")])
        except AdmissionFull as full:
            return full

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(80)))
    assert sum(isinstance(answer, AdmissionFull) for answer in answers) == 72
    assert engine.snapshot().waiting == 8


def test_a_full_line_says_when_to_come_back_from_measured_step_times() -> None:
    clock = ManualClock()
    engine, _ = EngineBuilder().queue(4).clock(clock, step_s=2.0).loaded()
    waiting = engine.add([a_request("measured", steps=5)])
    tick_out(engine)
    waiting += engine.add(some_requests("abcd", steps=10))
    with pytest.raises(AdmissionFull) as full:
        engine.add([a_request("e")])
    assert full.value.retry_after_s == pytest.approx(20.0)
    assert len(waiting) == 5


def test_a_full_line_asks_for_a_second_while_nothing_was_measured() -> None:
    engine, _ = EngineBuilder().queue(1).loaded()
    keep = engine.add([a_request("a")])
    with pytest.raises(AdmissionFull) as full:
        engine.add([a_request("b")])
    assert full.value.retry_after_s == 1.0
    assert keep


def test_a_held_wave_starts_when_its_time_has_come() -> None:
    clock = ManualClock()
    engine, executor = EngineBuilder().slots(4).max_wait(1.0).clock(clock).loaded()
    streams = engine.add([a_request("a", steps=1)])
    assert not engine.tick()
    streams += engine.add([a_request("b", steps=1)])
    clock.advance(0.05)
    assert engine.tick()
    assert set(executor.waves[0].scheduled_ids) == {"a", "b"}
    assert len(streams) == 2


def test_an_abort_is_terminal_at_once_while_a_wave_is_held() -> None:
    engine, executor = EngineBuilder().slots(4).max_wait(60.0).clock(ManualClock()).loaded()
    (stream,) = engine.add([a_request("a")])
    assert not engine.tick()
    engine.abort("a")
    assert list(stream) == [Aborted("a")]
    assert executor.waves == []


def test_two_engines_in_one_process_keep_apart() -> None:
    (one, first), (two, second) = EngineBuilder().loaded(), EngineBuilder().loaded()
    (mine,), (theirs,) = one.add([a_request("same")]), two.add([a_request("same")])
    one.abort("same")
    tick_out(two)
    assert list(mine) == [Aborted("same")]
    assert theirs.result(0).steps == 4
    assert (len(first.waves), len(second.waves)) == (0, 5)
