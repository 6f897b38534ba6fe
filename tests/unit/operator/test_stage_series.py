"""A stage's status as numbers, also one that no version of ours wrote."""

from __future__ import annotations

from typing import Any

import pytest

from stage_operator.telemetry.stage_series import per_stage, ranks


def samples(*stages: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Each sample by its name without the prefix and its labels, in order."""
    return {
        (sample.name.removeprefix("x_stage_"), *sample.labels.values()): sample.value
        for family in per_stage("x_", stages)
        for sample in family.samples
    }


def a_stage(status: Any, spec: Any = None) -> dict[str, Any]:
    return {"metadata": {"namespace": "art", "name": "shapes"}, "spec": spec, "status": status}


def test_a_stage_without_a_status_is_not_ready_and_wants_one_replica() -> None:
    seen = samples(a_stage(None))
    assert seen["ready", "art", "shapes"] == 0
    assert seen["replicas", "art", "shapes", "desired"] == 1
    assert seen["restarts_total", "art", "shapes"] == 0


@pytest.mark.parametrize(("status", "value"), [("True", 1), ("False", 0), ("Unknown", -1)])
def test_a_condition_is_told_with_its_reason(status: str, value: float) -> None:
    seen = samples(a_stage({"conditions": [{"type": "Ready", "status": status, "reason": "Why"}]}))
    assert seen["condition", "art", "shapes", "Ready", "Why"] == value
    assert seen["ready", "art", "shapes"] == (value == 1)


def test_replicas_that_wait_or_are_held_are_counted() -> None:
    phases = ["Ready", "BackOff", "BackOff", "Held"]
    status = {"replicaStatuses": [{"index": i, "phase": phase} for i, phase in enumerate(phases)]}
    seen = samples(a_stage(status, {"replicas": 4}))
    counts = {kind: seen["replicas", "art", "shapes", kind] for kind in ("desired", "back_off", "held")}
    assert counts == {"desired": 4, "back_off": 2, "held": 1}


def test_ranks_are_those_of_all_replicas_and_those_of_replicas_that_serve() -> None:
    status = {"topology": {"worldSize": 4}, "readyReplicas": 1}
    stages = [
        a_stage(status, {"replicas": 3}),
        a_stage({"topology": {"worldSize": 2}}, {"replicas": 5, "suspend": True}),
        a_stage(None),
        a_stage({"topology": 7}, []),
    ]
    assert ranks(stages) == {"desired": 12, "ready": 4}


@pytest.mark.parametrize(
    "status",
    [7, [], {"conditions": "x", "restarts": "y"}, {"replicaStatuses": [3, {"phase": []}], "topology": 1}],
)
def test_a_status_that_nobody_understands_stops_no_scrape(status: Any) -> None:
    seen = samples(a_stage(status, []), a_stage({"readyReplicas": 1}))
    assert seen["replicas", "art", "shapes", "ready"] == 1
