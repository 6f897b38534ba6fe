"""What a wave holds: who may run together, in which order, and what the runner is told."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import InternalError
from stage_runtime.core.outcome import Aborted, Completed, Outcome, Progressed, failed
from stage_runtime.core.wave import Wave
from stage_runtime.sched.base import BaseScheduler
from support.builders import EngineBuilder, RequestBuilder, a_request, some_requests
from support.scripted import pixel


def request_mode(slots: int = 1) -> BaseScheduler:
    return EngineBuilder().slots(slots).scheduler()


def step_mode(slots: int = 1) -> BaseScheduler:
    return EngineBuilder().step_mode().slots(slots).scheduler()


def scheduled(scheduler: BaseScheduler) -> tuple[set[str], set[str]]:
    """Who is new in the next wave, and who is cached."""
    wave = scheduler.schedule(now_s=0.0)
    return {new.request.request_id for new in wave.new}, set(wave.cached_ids)


def done(request_id: str) -> Outcome:
    return Completed(request_id, pixel(0), 4)


# Joining


def test_a_late_request_joins_at_the_next_step_in_step_mode() -> None:
    scheduler = step_mode(slots=4)
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduled(scheduler) == ({"a"}, set())
    scheduler.add([a_request("late")], now_s=0.0)
    assert scheduled(scheduler) == ({"late"}, {"a"})


def test_a_late_request_joins_the_next_wave_in_request_mode() -> None:
    scheduler = request_mode(slots=4)
    scheduler.add(some_requests("ab"), now_s=0.0)
    assert scheduled(scheduler) == ({"a", "b"}, set())
    scheduler.add([a_request("late")], now_s=0.0)
    assert scheduled(scheduler) == (set(), {"a", "b"})
    scheduler.update([done("a")], now_s=0.0)
    assert scheduled(scheduler) == (set(), {"b"})
    scheduler.update([done("b")], now_s=0.0)
    assert scheduled(scheduler) == ({"late"}, set())


def test_a_freed_slot_goes_to_the_head_of_the_line_in_step_mode() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add(some_requests("abcd"), now_s=0.0)
    assert scheduled(scheduler) == ({"a", "b"}, set())
    scheduler.update([done("a")], now_s=0.0)
    assert scheduled(scheduler) == ({"c"}, {"b"})


def test_capacity_is_one_unless_told_otherwise() -> None:
    scheduler = EngineBuilder().step_mode().scheduler()
    scheduler.add(some_requests("ab"), now_s=0.0)
    assert scheduled(scheduler) == ({"a"}, set())
    assert scheduled(scheduler) == (set(), {"a"})


def test_those_that_run_come_before_those_that_join() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add(some_requests("abc"), now_s=0.0)
    scheduled(scheduler)
    assert scheduled(scheduler) == (set(), {"a", "b"})


# Compatibility


@pytest.mark.invariant("BATCH-INV-001")
def test_only_requests_with_one_batch_key_run_together() -> None:
    scheduler = step_mode(slots=4)
    scheduler.add([a_request("a"), RequestBuilder("wide").size(64, 128).build()], now_s=0.0)
    assert scheduled(scheduler) == ({"a"}, set())


@pytest.mark.invariant("BATCH-INV-001")
def test_nobody_overtakes_a_waiting_request_with_another_key() -> None:
    scheduler = step_mode(slots=4)
    scheduler.add([a_request("a"), RequestBuilder("wide").size(64, 128).build(), a_request("b")], now_s=0.0)
    assert scheduled(scheduler) == ({"a"}, set())
    assert scheduler.snapshot(0.0).blocked_slots == 3
    scheduler.update([done("a")], now_s=0.0)
    assert scheduled(scheduler) == ({"wide"}, set())


@pytest.mark.invariant("BATCH-INV-001")
def test_steps_and_seed_do_not_keep_requests_apart() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add(
        [RequestBuilder("a").steps(3).build(), RequestBuilder("b").steps(8).seed(5).build()], now_s=0.0
    )
    assert scheduled(scheduler) == ({"a", "b"}, set())


# Finished ids


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
@pytest.mark.parametrize(
    "ending", [done("a"), Aborted("a"), failed("a", ValueError("bad"))], ids=["done", "aborted", "failed"]
)
def test_a_request_that_ended_is_named_to_the_runner_once(ending: Outcome) -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.update([ending], now_s=0.0)
    assert scheduler.has_work
    assert scheduler.schedule(now_s=0.0).finished_ids == ("a",)
    assert scheduler.schedule(now_s=0.0).is_empty
    assert not scheduler.has_work


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_the_runner_hears_of_an_abort_with_the_next_wave_even_when_nothing_else_runs() -> None:
    scheduler = request_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.abort("a", now_s=0.0)
    wave = scheduler.schedule(now_s=0.0)
    assert (wave.finished_ids, wave.scheduled_ids) == (("a",), ())


def test_the_runner_never_hears_of_a_request_that_did_not_run() -> None:
    scheduler = request_mode()
    scheduler.add(some_requests("ab"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.abort("b", now_s=0.0)
    assert scheduler.schedule(now_s=0.0).finished_ids == ()


def test_waves_carry_no_key_value_work() -> None:
    scheduler = request_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    wave = scheduler.schedule(now_s=0.0)
    assert (wave.kv_prefetch, wave.new[0].kv_metadata) == (None, None)


def test_only_waves_with_something_in_them_are_numbered() -> None:
    scheduler = request_mode()
    assert scheduler.schedule(now_s=0.0) == Wave(wave_id=1)
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduler.schedule(now_s=0.0).wave_id == 1
    assert scheduler.schedule(now_s=0.0).wave_id == 2


# Outcomes


@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
@pytest.mark.invariant("BATCH-INV-004")
def test_outcomes_find_their_requests_by_id_in_whatever_order_they_come() -> None:
    scheduler = step_mode(slots=3)
    scheduler.add(some_requests("abc"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    outcomes: list[Outcome] = [done("c"), Progressed("a", 1, 4), failed("b", ValueError("bad"))]
    assert scheduler.update(outcomes, now_s=0.0) == outcomes
    assert scheduled(scheduler) == (set(), {"a"})


def test_a_request_without_an_outcome_did_not_move_and_runs_on() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add(some_requests("ab"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    assert scheduler.update([Progressed("a", 1, 4)], now_s=0.0) == [Progressed("a", 1, 4)]
    assert scheduled(scheduler) == (set(), {"a", "b"})


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
def test_an_outcome_of_a_request_that_is_gone_is_dropped() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    assert scheduler.abort("a", now_s=0.0) == Aborted("a")
    assert scheduler.update([done("a")], now_s=0.0) == []


@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
def test_a_late_outcome_never_reaches_a_waiting_request_with_the_same_id() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduler.update([done("a")], now_s=0.0) == []
    assert scheduler.live == 1


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
def test_a_request_is_aborted_once() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduler.abort("a", now_s=0.0) == Aborted("a")
    assert scheduler.abort("a", now_s=0.0) is None


def test_the_death_of_the_group_ends_every_request_wherever_it_stands() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add(some_requests("pmrw"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.preempt("p")
    scheduler.materialise("m", 0.0)
    scheduler.schedule(now_s=0.0)
    ended = scheduler.fail_all(ValueError("gone"), now_s=0.0)
    assert {outcome.request_id for outcome in ended} == set("pmrw")
    assert scheduler.live == 0


# Work and age


def test_outstanding_cost_falls_with_every_step_and_is_nothing_at_rest() -> None:
    scheduler = step_mode(slots=2)
    scheduler.add([RequestBuilder("a").steps(10).size(8, 8).build(), a_request("b")], now_s=0.0)
    scheduler.abort("b", now_s=0.0)
    assert scheduler.snapshot(0.0).outstanding_cost == 10 * 64
    scheduler.schedule(now_s=0.0)
    scheduler.update([Progressed("a", 4, 10)], now_s=0.0)
    assert scheduler.snapshot(0.0).outstanding_cost == 6 * 64
    scheduler.update([Completed("a", pixel(0), 5)], now_s=0.0)
    assert scheduler.snapshot(0.0).outstanding_cost == 0


def test_the_oldest_age_is_that_of_the_head_of_the_line() -> None:
    scheduler = request_mode()
    scheduler.add([a_request("a")], now_s=1.0)
    scheduler.add([a_request("b")], now_s=3.0)
    assert scheduler.snapshot(4.0).oldest_age_s == 3.0
    scheduler.schedule(now_s=4.0)
    assert scheduler.snapshot(5.0).oldest_age_s == 2.0


# Preemption


def test_a_preempted_request_gives_its_slot_to_who_waits_and_comes_back_cached() -> None:
    scheduler = step_mode()
    scheduler.add(some_requests("ab"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.preempt("a")
    assert scheduled(scheduler) == ({"b"}, set())
    scheduler.update([done("b")], now_s=0.0)
    assert scheduled(scheduler) == (set(), {"a"})


def test_a_preempted_request_that_is_aborted_is_named_to_the_runner() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.preempt("a")
    assert scheduler.abort("a", now_s=0.0) == Aborted("a")
    assert scheduler.schedule(now_s=0.0).finished_ids == ("a",)


def test_a_result_that_was_under_way_when_its_request_was_preempted_is_not_lost() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.preempt("a")
    assert scheduler.update([done("a")], now_s=0.0) == [done("a")]
    assert scheduler.live == 0


def test_preempted_requests_take_no_place_in_the_line() -> None:
    scheduler = EngineBuilder().step_mode().queue(1).scheduler()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.preempt("a")
    scheduler.add([a_request("b")], now_s=0.0)
    assert (scheduler.snapshot(0.0).waiting, scheduler.snapshot(0.0).preempted) == (1, 1)


def test_only_a_request_with_a_slot_can_be_preempted() -> None:
    scheduler = step_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    with pytest.raises(InternalError, match="takes no slot"):
        scheduler.preempt("a")


# Materialising


def test_a_computed_request_frees_its_slot_and_stays_owned_until_it_is_delivered() -> None:
    scheduler = request_mode()
    scheduler.add(some_requests("ab"), now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.materialise("a", 0.0)
    assert scheduled(scheduler) == ({"b"}, set())
    assert (scheduler.live, scheduler.materialising) == (2, 1)
    assert scheduler.update([done("a")], now_s=0.0) == [done("a")]
    assert (scheduler.live, scheduler.materialising) == (1, 0)


@pytest.mark.parametrize("fails", [True, False], ids=["packaging fails", "aborted"])
def test_a_request_can_still_end_badly_while_it_materialises(fails: bool) -> None:
    scheduler = request_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.materialise("a", 0.0)
    ending = failed("a", OSError("no shared memory")) if fails else Aborted("a")
    ended = scheduler.update([ending], now_s=0.0) if fails else [scheduler.abort("a", now_s=0.0)]
    assert ended == [ending]
    assert scheduler.update([done("a")], now_s=0.0) == []
    assert scheduler.schedule(now_s=0.0).finished_ids == ("a",)


def test_a_request_that_materialises_is_work() -> None:
    scheduler = request_mode()
    scheduler.add([a_request("a")], now_s=0.0)
    scheduler.schedule(now_s=0.0)
    scheduler.materialise("a", 0.0)
    assert scheduler.has_work
    assert scheduler.schedule(now_s=0.0).is_empty
