"""Which moves a request may make."""

from __future__ import annotations

from itertools import product

import pytest

from stage_runtime.core.errors import InternalError
from stage_runtime.sched.lifecycle import Record, Status, advance
from support.builders import a_request

W, R, P = Status.WAITING, Status.RUNNING, Status.PREEMPTED
COMPLETED, ABORTED, ERROR = Status.FINISHED_COMPLETED, Status.FINISHED_ABORTED, Status.FINISHED_ERROR

ALLOWED = {
    (W, R),
    (W, ABORTED),
    (W, ERROR),
    (R, P),
    (R, COMPLETED),
    (R, ABORTED),
    (R, ERROR),
    (P, R),
    (P, ABORTED),
    (P, ERROR),
}


def record_in(status: Status) -> Record:
    return Record(a_request(), arrival_s=0.0, status=status)


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
@pytest.mark.parametrize(("before", "after"), sorted(ALLOWED, key=str))
def test_a_listed_move_is_made(before: Status, after: Status) -> None:
    record = record_in(before)
    advance(record, after)
    assert record.status is after


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
@pytest.mark.parametrize(("before", "after"), sorted(set(product(Status, Status)) - ALLOWED, key=str))
def test_an_unlisted_move_is_refused_and_changes_nothing(before: Status, after: Status) -> None:
    record = record_in(before)
    with pytest.raises(InternalError, match=f"{before.name} to {after.name}"):
        advance(record, after)
    assert record.status is before


def test_a_request_that_ends_no_longer_materialises() -> None:
    record = record_in(R)
    record.materialising = True
    advance(record, COMPLETED)
    assert not record.materialising
