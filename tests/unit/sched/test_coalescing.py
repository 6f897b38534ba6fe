"""When a wave that isn't full is held back, and until when."""

from __future__ import annotations

import pytest

from stage_runtime.core.outcome import Completed
from stage_runtime.sched.admission import Coalescing
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from support.builders import EngineBuilder, RequestBuilder, a_request, some_requests
from support.scripted import pixel


def holding(*, slots: int = 4, max_wait_s: float = 1.0) -> BaseScheduler:
    """Lull: 0.05 s at a wait of 1 s."""
    return EngineBuilder().slots(slots).max_wait(max_wait_s).scheduler()


def test_nothing_is_held_unless_asked_for() -> None:
    scheduler = EngineBuilder().slots(4).scheduler()
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduler.hold_until(0.0) is None
    assert scheduler.schedule(0.0).scheduled_ids == ("a",)


def test_a_held_wave_starts_after_a_lull() -> None:
    scheduler = holding()
    scheduler.add([a_request("a")], now_s=10.0)
    assert scheduler.hold_until(10.0) == pytest.approx(10.05)
    assert scheduler.schedule(10.04).is_empty
    assert scheduler.schedule(10.05).scheduled_ids == ("a",)


def test_each_arrival_starts_the_lull_anew() -> None:
    scheduler = holding()
    scheduler.add([a_request("a")], now_s=10.0)
    scheduler.add([a_request("b")], now_s=10.04)
    assert scheduler.hold_until(10.05) == pytest.approx(10.09)


def test_a_full_wave_starts_at_once() -> None:
    scheduler = holding(slots=3)
    scheduler.add(some_requests("abc"), now_s=10.0)
    assert scheduler.hold_until(10.0) is None
    assert set(scheduler.schedule(10.0).scheduled_ids) == set("abc")


def test_arrivals_cannot_hold_a_wave_longer_than_the_wait() -> None:
    scheduler = holding(slots=64)
    for n in range(40):
        scheduler.add([a_request(f"r{n}")], now_s=10.0 + n * 0.03)
    assert scheduler.hold_until(10.99) == pytest.approx(11.0)
    assert scheduler.hold_until(11.0) is None


def test_a_wave_that_cannot_grow_is_not_held() -> None:
    scheduler = holding()
    scheduler.add([a_request("a"), RequestBuilder("wide").size(64, 128).build()], now_s=10.0)
    assert scheduler.schedule(10.0).scheduled_ids == ("a",)


def test_who_waited_behind_a_long_wave_is_not_held_again() -> None:
    scheduler = holding()
    scheduler.add(some_requests("abcd"), now_s=10.0)
    scheduler.schedule(10.0)
    scheduler.add([a_request("late")], now_s=10.1)
    scheduler.update([Completed(request_id, pixel(0), 4) for request_id in "abcd"], now_s=20.0)
    assert scheduler.schedule(20.0).scheduled_ids == ("late",)


def test_a_wave_that_runs_is_never_held() -> None:
    scheduler = holding()
    scheduler.add(some_requests("abcd"), now_s=10.0)
    scheduler.schedule(10.0)
    scheduler.add([a_request("late")], now_s=10.0)
    assert scheduler.hold_until(10.0) is None


def test_one_slot_has_nothing_to_wait_for() -> None:
    scheduler = holding(slots=1)
    scheduler.add([a_request("a")], now_s=10.0)
    assert scheduler.hold_until(10.0) is None


def test_the_runner_is_told_what_ended_while_a_wave_is_held() -> None:
    scheduler = holding()
    scheduler.add(some_requests("abcd"), now_s=10.0)
    scheduler.schedule(10.0)
    scheduler.update([Completed(request_id, pixel(0), 4) for request_id in "abcd"], now_s=20.0)
    scheduler.add([a_request("e")], now_s=20.0)
    wave = scheduler.schedule(20.0)
    assert (set(wave.finished_ids), wave.scheduled_ids) == (set("abcd"), ())


def test_the_lull_is_a_fifth_of_a_short_wait() -> None:
    assert Coalescing(0.1).lull_s == pytest.approx(0.02)


def test_groups_of_data_ranks_wait_for_half_the_time_at_most_three_tenths_of_a_second() -> None:
    assert Coalescing.data_parallel(0.4).lull_s == pytest.approx(0.2)
    assert Coalescing.data_parallel(9.0).lull_s == pytest.approx(0.3)
    scheduler = RequestScheduler(max_num_seqs=2, coalescing=Coalescing.data_parallel(9.0))
    scheduler.add([a_request("a")], now_s=0.0)
    assert scheduler.hold_until(0.0) == pytest.approx(0.3)
