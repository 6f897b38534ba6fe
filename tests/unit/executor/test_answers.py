"""What the ranks' answers to a control call come to."""

from __future__ import annotations

import pytest

from stage_runtime.core.control import Health, Invoke, Outstanding, Pause, RankHealth
from stage_runtime.core.errors import InternalError, InvalidRequest, RequestFailed
from stage_runtime.core.outcome import Failed
from stage_runtime.executor.answers import combined, unanswered
from stage_runtime.ipc.messages import Answered


def answers(*values: object) -> dict[int, Answered]:
    """Of ranks 0, 1, …; a `Failed` is that rank's failure."""
    return {
        rank: Answered(rank=rank, call_id=1, error=value)
        if isinstance(value, Failed)
        else Answered(rank=rank, call_id=1, value=value)
        for rank, value in enumerate(values)
    }


def test_a_call_about_the_engine_has_no_value() -> None:
    assert combined(Pause(), answers(None, None)) is None


def test_counts_are_added_up() -> None:
    assert combined(Outstanding(), answers({"scripts": 1}, {"scripts": 2, "parcels": 1})) == {
        "scripts": 3,
        "parcels": 1,
    }


def test_other_calls_have_a_value_a_rank_in_rank_order() -> None:
    told = answers("zero", "one")
    assert combined(Invoke("name"), dict(reversed(told.items()))) == ("zero", "one")


def test_health_is_typed_again() -> None:
    one = {"rank": 0, "pid": 7, "device": "cpu", "allocated_bytes": 3, "asleep": False, "paused": True}
    assert combined(Health(), answers(one)) == (
        RankHealth(rank=0, pid=7, device="cpu", allocated_bytes=3, paused=True),
    )


def test_the_failure_of_one_rank_is_a_failure_that_names_it() -> None:
    with pytest.raises(RequestFailed, match=r"rank 1: disk full \(1 of 2 ranks did it\)"):
        combined(Invoke("save"), answers("saved", Failed("", "disk full")))


def test_ranks_that_fail_alike_keep_the_type_of_their_error() -> None:
    wrong = Failed("", "no such method", 400, "invalid_request", "method")
    with pytest.raises(InvalidRequest, match="no such method") as refused:
        combined(Invoke("x"), answers(wrong, wrong))
    assert refused.value.field == "method"


def test_a_rank_that_does_not_count_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="counts with"):
        combined(Outstanding(), answers(3))


def test_a_rank_that_alone_is_silent_is_at_fault() -> None:
    died_of = unanswered(Pause(), {0: Answered(rank=0, call_id=1)}, 2)
    assert (str(died_of), died_of.rank) == ("rank 1 has not answered Pause", 1)


def test_of_several_silent_ranks_none_is_blamed() -> None:
    died_of = unanswered(Pause(), {}, 2)
    assert (str(died_of), died_of.rank) == ("ranks 0, 1 have not answered Pause", None)
