"""Who is let into the line."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import AdmissionFull, InternalError, InvalidRequest
from stage_runtime.core.outcome import Aborted, Completed
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.sched.step import StepScheduler
from support.builders import EngineBuilder, a_request, some_requests
from support.scripted import pixel


def scheduler(*, queue: int = 8, slots: int = 1) -> BaseScheduler:
    return EngineBuilder().queue(queue).slots(slots).scheduler()


@pytest.mark.invariant("BATCH-INV-003")
def test_the_line_takes_exactly_as_many_outputs_as_it_has_places() -> None:
    line = scheduler(queue=8)
    refused = 0
    for number in range(80):
        try:
            line.add([a_request(f"r{number}")], now_s=0.0)
        except AdmissionFull:
            refused += 1
    assert (line.snapshot(0.0).waiting, refused) == (8, 72)


@pytest.mark.invariant("BATCH-INV-003")
def test_four_images_count_as_four_outputs() -> None:
    """Case B63."""
    line = scheduler(queue=8)
    line.add(some_requests(["a1", "a2", "a3", "a4"]), now_s=0.0)
    line.add(some_requests(["b1", "b2", "b3", "b4"]), now_s=0.0)
    with pytest.raises(AdmissionFull, match="8 outputs wait, 4 more pass the limit of 8"):
        line.add(some_requests(["c1", "c2", "c3", "c4"]), now_s=0.0)


def test_requests_that_do_not_fit_together_are_refused_together() -> None:
    line = scheduler(queue=5)
    line.add(some_requests("abc"), now_s=0.0)
    with pytest.raises(AdmissionFull):
        line.add(some_requests("def"), now_s=0.0)
    assert line.live == 3
    line.add(some_requests("de"), now_s=0.0)


def test_more_outputs_than_the_line_can_ever_hold_are_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="at most 2") as refused:
        scheduler(queue=2).add(some_requests("abc"), now_s=0.0)
    assert refused.value.field == "n"


def test_an_aborted_waiter_frees_its_place_at_once() -> None:
    """Case B63."""
    line = scheduler(queue=1)
    line.add([a_request("a")], now_s=0.0)
    line.abort("a", now_s=0.0)
    line.add([a_request("b")], now_s=0.0)
    assert line.snapshot(0.0).waiting == 1


def test_running_requests_take_no_place_in_the_line() -> None:
    line = scheduler(queue=2, slots=2)
    line.add(some_requests("ab"), now_s=0.0)
    line.schedule(now_s=0.0)
    line.add(some_requests("cd"), now_s=0.0)
    assert (line.snapshot(0.0).running, line.snapshot(0.0).waiting) == (2, 2)


def test_an_id_that_lives_is_refused_and_its_request_goes_on() -> None:
    line = scheduler()
    line.add([a_request("a")], now_s=0.0)
    with pytest.raises(InvalidRequest, match="in use: a") as refused:
        line.add([a_request("b"), a_request("a")], now_s=0.0)
    assert refused.value.field == "request_id"
    assert line.live == 1


def test_one_id_given_twice_at_once_is_refused() -> None:
    line = scheduler()
    with pytest.raises(InvalidRequest, match="in use: a"):
        line.add([a_request("a"), a_request("a")], now_s=0.0)
    assert line.live == 0


def test_an_id_is_free_again_once_the_runner_is_told_that_its_request_ended() -> None:
    line = scheduler()
    line.add([a_request("a")], now_s=0.0)
    line.schedule(now_s=0.0)
    line.update([Completed("a", pixel(0), 4)], now_s=0.0)
    with pytest.raises(InvalidRequest):
        line.add([a_request("a")], now_s=0.0)
    assert line.schedule(now_s=0.0).finished_ids == ("a",)
    line.add([a_request("a")], now_s=0.0)


def test_an_id_that_never_ran_is_free_at_once() -> None:
    line = scheduler()
    line.add([a_request("a")], now_s=0.0)
    assert line.abort("a", now_s=0.0) == Aborted("a")
    line.add([a_request("a")], now_s=0.0)


@pytest.mark.parametrize("mode", [RequestScheduler, StepScheduler])
@pytest.mark.parametrize(("slots", "queue"), [(0, 1), (1, 0)])
def test_a_scheduler_without_places_is_refused(mode: type[BaseScheduler], slots: int, queue: int) -> None:
    with pytest.raises(InternalError, match="expected 1 or more"):
        mode(max_num_seqs=slots, max_queue_size=queue)
