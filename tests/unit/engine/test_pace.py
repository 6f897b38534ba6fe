"""What measured ticks say about hangs and about when to come back."""

from __future__ import annotations

import pytest

from stage_runtime.core.request import BatchKey
from stage_runtime.engine.pace import Pace
from stage_runtime.sched.base import Snapshot

SMALL, LARGE = BatchKey((("width", 64),)), BatchKey((("width", 1024),))


def pace() -> Pace:
    return Pace(startup_timeout_s=600.0, tolerance=10.0, floor_s=1.0)


def load(*, outputs: int, cost: int) -> Snapshot:
    return Snapshot(
        waiting=outputs,
        running=0,
        preempted=0,
        materialising=0,
        live=0,
        untold=0,
        oldest_age_s=0.0,
        outstanding_cost=cost,
        blocked_slots=0,
        capacity=1,
        queue_limit=outputs,
    )


def test_what_was_never_measured_may_take_the_startup_timeout() -> None:
    assert pace().limit_s(SMALL, 100) == 600.0


def test_a_key_is_measured_once_one_of_its_requests_has_run_to_its_end() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 1.0, completed=False)
    assert measured.limit_s(SMALL, 100) == 600.0
    measured.observe(SMALL, 100, 2.0, completed=True)
    assert measured.limit_s(SMALL, 100) == pytest.approx(20.0)


def test_one_key_says_nothing_about_another() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 1.0, completed=True)
    assert measured.limit_s(LARGE, 100) == 600.0


def test_a_larger_wave_may_take_longer_and_a_smaller_one_no_less() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 1.0, completed=True)
    assert measured.limit_s(SMALL, 400) == pytest.approx(40.0)
    assert measured.limit_s(SMALL, 25) == pytest.approx(10.0)


def test_a_fast_model_is_not_called_hung_for_a_short_pause() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 0.001, completed=True)
    assert measured.limit_s(SMALL, 100) == 1.0


def test_the_slowest_tick_counts_however_many_were_fast() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 5.0, completed=True)
    for _ in range(100):
        measured.observe(SMALL, 100, 0.1, completed=False)
    assert measured.limit_s(SMALL, 100) == pytest.approx(50.0)


def test_expected_time_follows_recent_ticks() -> None:
    measured = pace()
    assert measured.expected_s(1000) is None
    for _ in range(50):
        measured.observe(SMALL, 100, 1.0, completed=False)
    for _ in range(50):
        measured.observe(SMALL, 100, 2.0, completed=False)
    assert measured.expected_s(1000) == pytest.approx(20.0, rel=0.01)


def test_come_back_when_as_many_outputs_will_be_done() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 1.0, completed=True)
    assert measured.retry_after_s(load(outputs=8, cost=8000), 2) == pytest.approx(20.0)


def test_come_back_no_sooner_than_in_a_second_and_no_later_than_in_ten_minutes() -> None:
    measured = pace()
    assert measured.retry_after_s(load(outputs=8, cost=8000), 1) == 1.0
    measured.observe(SMALL, 100, 1.0, completed=True)
    assert measured.retry_after_s(load(outputs=8, cost=8), 1) == 1.0
    assert measured.retry_after_s(load(outputs=8, cost=10**9), 1) == 600.0


def test_what_is_remembered_is_bounded() -> None:
    measured = pace()
    measured.observe(SMALL, 100, 1.0, completed=True)
    for width in range(1000):
        measured.observe(BatchKey((("width", width), ("other", 1))), 100, 1.0, completed=True)
    assert measured.limit_s(SMALL, 100) == 600.0
