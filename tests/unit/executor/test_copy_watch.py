"""A copy of the model that hangs is found also while the others move; a freeze or a pause is no hang."""

from __future__ import annotations

from stage_runtime.executor.copy_watch import CopyWatch

LIMIT_S = 10.0


def played(
    silence: CopyWatch, *, until_s: float, talks: set[int], busy: set[int], from_s: float = 0.0
) -> object:
    """Polls every tenth of a second; `talks` are heard each time."""
    now_s = from_s
    while now_s < until_s:
        now_s += 0.1
        silence.allow(LIMIT_S)
        silence.busy(busy, now_s)
        for copy in talks:
            silence.heard(copy, now_s)
        if (hung := silence.hung(now_s)) is not None:
            return hung[0]
    return None


def test_a_copy_that_says_nothing_is_found_while_another_moves() -> None:
    assert played(CopyWatch(), until_s=15.0, talks={0}, busy={0, 1}) == 1


def test_copies_that_talk_do_not_hang() -> None:
    assert played(CopyWatch(), until_s=60.0, talks={0, 1}, busy={0, 1}) is None


def test_an_idle_copy_may_be_silent() -> None:
    assert played(CopyWatch(), until_s=60.0, talks={0}, busy={0}) is None


def test_a_copy_has_its_whole_time_from_its_own_start() -> None:
    silence = CopyWatch()
    assert played(silence, until_s=9.0, talks={0}, busy={0}) is None
    assert played(silence, until_s=17.0, talks={0}, busy={0, 1}, from_s=9.0) is None


def test_one_late_look_after_a_freeze_is_no_hang() -> None:
    silence = CopyWatch()
    played(silence, until_s=1.0, talks={0, 1}, busy={0, 1})
    assert silence.hung(1000.0) is None


def test_time_in_a_pause_does_not_count() -> None:
    silence = CopyWatch()
    played(silence, until_s=5.0, talks={0}, busy={0, 1})
    silence.allow(None)
    assert silence.hung(500.0) is None
    assert played(silence, until_s=508.0, talks={0}, busy={0, 1}, from_s=500.0) is None


def test_patience_that_shrinks_while_nobody_moves_is_not_the_limit() -> None:
    silence = CopyWatch()
    silence.busy({0}, 0.0)
    for now_s in range(9):
        silence.allow(LIMIT_S - now_s)
        assert silence.hung(float(now_s)) is None
