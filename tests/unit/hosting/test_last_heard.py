"""What is known of an engine in another process between two words of it."""

from __future__ import annotations

from msgspec.structs import replace

from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.hosting.last_heard import NO_LOAD, NOTABLE_S, SILENCE_S, LastHeard
from stage_runtime.hosting.messages import Status

LOAD = replace(NO_LOAD, running=1, waiting=2, live=3, oldest_age_s=5.0, capacity=4, queue_limit=8)


def a_status(elapsed_s: float = 0.0, limit_s: float | None = None, tick: int = 7) -> Status:
    return Status(Phase.READY, Progress(tick, elapsed_s, limit_s), LOAD)


def heard_at(now_s: float, status: Status) -> LastHeard:
    pulse = LastHeard(startup_timeout_s=60.0)
    pulse.heard(now_s, status)
    return pulse


def test_loading_counts_against_the_startup_timeout() -> None:
    pulse = LastHeard(startup_timeout_s=60.0)
    pulse.heard(100.0)
    assert pulse.progress(130.0, owes=False) == Progress(0, 30.0, 60.0)
    assert pulse.progress(161.0, owes=False).overdue


def test_a_tick_goes_on_counting_while_nothing_is_said() -> None:
    pulse = heard_at(100.0, a_status(2.0, 10.0))
    assert pulse.progress(105.0, owes=True) == Progress(7, 7.0, 10.0)
    assert pulse.progress(109.0, owes=True).overdue


def test_any_word_is_a_sign_of_life_between_two_ticks() -> None:
    pulse = heard_at(100.0, a_status())
    pulse.heard(100.0 + SILENCE_S)
    assert pulse.progress(100.5 + SILENCE_S, owes=True) == Progress(7, 0.0, None)


def test_silence_of_one_that_owes_something_is_a_hang() -> None:
    pulse = heard_at(100.0, a_status())
    assert pulse.progress(101.0 + SILENCE_S, owes=True).overdue


def test_silence_of_one_that_owes_nothing_is_rest() -> None:
    pulse = heard_at(100.0, a_status())
    assert pulse.progress(10_000.0, owes=False) == Progress(7, 0.0, None)


def test_rest_before_it_was_asked_does_not_count() -> None:
    pulse = heard_at(100.0, a_status())
    pulse.asked(10_000.0)
    assert pulse.progress(10_000.0 + NOTABLE_S, owes=True) == Progress(7, 0.0, None)
    assert pulse.progress(10_001.0 + SILENCE_S, owes=True).overdue


def test_who_waits_has_waited_on_since() -> None:
    pulse = heard_at(100.0, a_status())
    assert pulse.snapshot(103.0) == replace(LOAD, oldest_age_s=8.0)


def test_nothing_is_busy_before_the_first_word_and_after_the_end() -> None:
    assert LastHeard(60.0).snapshot(5.0) == NO_LOAD
    assert heard_at(100.0, a_status()).emptied() == replace(NO_LOAD, capacity=4, queue_limit=8)
