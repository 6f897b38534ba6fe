"""A status that holds every replica that there may be, and still fits."""

from __future__ import annotations

import json
from typing import Any

from stage_api.failure import (
    MAX_BAD_NODES,
    MAX_MESSAGE_CHARS,
    MAX_RESTARTS,
    Evidence,
    History,
    HoldReason,
    Reason,
)
from stage_api.replica_status import MAX_NODES, ReplicaStatus
from stage_api.status import DETAILED_BYTES, MAX_BYTES, DiffusionStageStatus

NODE = "node-" + "n" * 58
TIME = "2026-01-02T03:04:05Z"


def history(restarts: int) -> History:
    return History(
        epoch=999,
        consecutive=100,
        recent=tuple(1_764_489_600.123456 + n for n in range(restarts)),
        restarts=10_000,
        disruptions=10_000,
        last=Evidence(
            epoch=999,
            exit_code=137,
            reason=Reason.OOM_KILLED,
            rank=1023,
            node=NODE,
            message="m" * MAX_MESSAGE_CHARS,
        ),
        restart_at_s=1_764_489_600.123456,
        avoid_nodes=(NODE,) * MAX_BAD_NODES,
        held=HoldReason.BUDGET_EXCEEDED,
    )


def status(replicas: int, **fields: Any) -> DiffusionStageStatus:
    one = {"epoch": 999, "phase": "Terminating", "revision": "0123456789", "ready": "1023/1024", **fields}
    return DiffusionStageStatus(
        replica_statuses=tuple(
            ReplicaStatus(index=index, started_at=TIME, ready_at=TIME, **one) for index in range(replicas)
        )
    )


def size(made: DiffusionStageStatus) -> int:
    return len(json.dumps(made.to_json()))


def test_a_thousand_replicas_that_are_well_are_told_in_full() -> None:
    made = status(1000, nodes=("node-12345",))
    assert made.fitted() == made
    assert size(made) < DETAILED_BYTES


def test_a_few_replicas_in_trouble_are_told_in_full() -> None:
    made = status(64, nodes=(NODE,) * MAX_NODES, history=history(6))
    assert made.fitted() == made


def test_many_replicas_in_trouble_lose_what_only_people_read() -> None:
    fitted = status(1000, nodes=(NODE,) * MAX_NODES, history=history(6)).fitted()
    assert size(fitted) <= MAX_BYTES
    assert len(fitted.replica_statuses) == 1000
    last = fitted.replica_statuses[-1]
    assert last.nodes == ()
    assert last.ready_at == TIME
    assert last.history is not None
    assert last.history.last is not None
    assert last.history.last.message == ""
    assert last.history.recent == history(6).recent


def test_the_largest_status_that_there_may_be_fits_and_keeps_the_newest_restarts() -> None:
    fitted = status(1000, nodes=(NODE,) * MAX_NODES, history=history(MAX_RESTARTS)).fitted()
    assert size(fitted) <= MAX_BYTES
    last = fitted.replica_statuses[-1].history
    assert last is not None
    assert last.recent
    assert last.recent == history(MAX_RESTARTS).recent[-len(last.recent) :]
    assert last.held is HoldReason.BUDGET_EXCEEDED


def test_what_a_later_version_wrote_is_read_without_complaint() -> None:
    read = ReplicaStatus.model_validate({"index": 3, "mood": "fine", "history": {"restarts": 2, "luck": 1}})
    assert read.history == History(restarts=2)
