"""When a client is to come back that came while the stage starts, or to a dead one."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import DeviceLost, EngineDeadError, InternalError, NotAdmitting, RequestFailed
from stage_runtime.engine.phase import STARTING, Phase
from stage_runtime.server.http.start_times import LONGEST_S, RESTART_S, UNTOLD_S, StartTimes
from support.scripted import ManualClock

EARLY = NotAdmitting("the stage is starting")


@pytest.mark.parametrize("phase", sorted(STARTING))
@pytest.mark.parametrize(
    ("last_s", "elapsed_s", "left_s"),
    [
        (40.0, 0.0, 40.0),
        (40.0, 30.0, 10.0),
        (40.0, 50.0, 50.0),
        (300.0, 10.0, LONGEST_S),
        (None, 0.0, UNTOLD_S),
        (None, 30.0, 30.0),
        (None, 500.0, LONGEST_S),
    ],
)
def test_a_client_that_comes_early_is_told_what_is_left_of_a_start(
    phase: Phase, last_s: float | None, elapsed_s: float, left_s: float
) -> None:
    """By what the last one took; else, and when that is past, as long again as this one has taken."""
    clock = ManualClock()
    starts = StartTimes(last_s, clock)
    clock.advance(elapsed_s)
    assert starts.retry_after_s(EARLY, phase) == pytest.approx(left_s)


@pytest.mark.parametrize("error", [EngineDeadError("gone"), DeviceLost("gone")])
@pytest.mark.parametrize(("took_s", "wait_s"), [(20.0, 20.0 + RESTART_S), (500.0, LONGEST_S)])
def test_a_client_of_a_dead_stage_is_told_what_the_next_start_will_take(
    error: EngineDeadError, took_s: float, wait_s: float
) -> None:
    clock = ManualClock()
    starts = StartTimes(None, clock)
    assert starts.retry_after_s(error, Phase.DEAD) is None
    clock.advance(took_s)
    starts.over()
    clock.advance(1000.0)
    assert starts.retry_after_s(error, Phase.DEAD) == pytest.approx(wait_s)


@pytest.mark.parametrize("phase", sorted(set(Phase) - STARTING))
def test_who_comes_to_a_drain_or_fails_waits_by_another_rule(phase: Phase) -> None:
    for error in (NotAdmitting("draining"), RequestFailed("no"), InternalError("no")):
        assert StartTimes(40.0).retry_after_s(error, phase) is None
