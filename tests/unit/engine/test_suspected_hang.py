"""A hang is one only after it was watched for a while: a freeze of the whole process is none."""

from __future__ import annotations

from stage_runtime.core.suspected_hang import SuspectedHang


def looks(suspicion: SuspectedHang, *times_s: float, what: object = 1) -> list[bool]:
    return [suspicion.confirmed(what, overdue=True, now_s=now_s) for now_s in times_s]


def test_what_is_overdue_for_a_second_of_looks_hangs() -> None:
    assert looks(SuspectedHang(), 0.0, 0.25, 0.5, 0.75, 1.0) == [False, False, False, False, True]


def test_one_look_after_a_freeze_is_not_enough() -> None:
    assert looks(SuspectedHang(), 1000.0) == [False]


def test_a_freeze_between_two_looks_counts_little() -> None:
    assert looks(SuspectedHang(), 0.0, 1000.0) == [False, False]


def test_rare_looks_confirm_it_too() -> None:
    assert looks(SuspectedHang(), 0.0, 10.0, 20.0) == [False, False, True]


def test_a_look_that_finds_nothing_overdue_begins_anew() -> None:
    suspicion = SuspectedHang()
    looks(suspicion, 0.0, 0.5)
    assert not suspicion.confirmed(1, overdue=False, now_s=0.75)
    assert looks(suspicion, 1.0, 1.5, 2.0) == [False, False, True]


def test_the_next_tick_is_looked_at_anew() -> None:
    suspicion = SuspectedHang()
    looks(suspicion, 0.0, 0.5, what=1)
    assert looks(suspicion, 1.0, 1.5, 2.0, what=2) == [False, False, True]
