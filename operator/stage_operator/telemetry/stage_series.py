"""The series of each stage: what its status says, as numbers. They go when the stage goes.

A stored object may be older than the schema, and hold anything: what can't be read is left out.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from stage_api.replica_status import ReplicaPhase
from stage_operator.values import Manifest, StageKey

_LABELS: Final = ("namespace", "stage")
_TRUTH: Final = {"True": 1.0, "False": 0.0}
_UNKNOWN: Final = -1.0
_WAITING: Final = {"back_off": ReplicaPhase.BACK_OFF, "held": ReplicaPhase.HELD}
"""Replicas that don't run and aren't coming up either, by the kind that counts them."""


def per_stage(prefix: str, stages: Iterable[Manifest]) -> Iterator[Metric]:
    """Each family, with the values of every stage."""
    ready = GaugeMetricFamily(f"{prefix}stage_ready", "1 where every replica serves.", labels=_LABELS)
    replicas = GaugeMetricFamily(
        f"{prefix}stage_replicas", "Replicas of a stage, by kind.", labels=(*_LABELS, "kind")
    )
    restarts = CounterMetricFamily(
        f"{prefix}stage_restarts", "Restarts of a stage's replicas.", labels=_LABELS
    )
    conditions = GaugeMetricFamily(
        f"{prefix}stage_condition",
        "Conditions of a stage: 1 is True, 0 False, -1 Unknown.",
        labels=(*_LABELS, "condition", "reason"),
    )
    info = GaugeMetricFamily(
        f"{prefix}stage_info", "1, with what a stage serves.", labels=(*_LABELS, "model", "revision", "world")
    )
    for stage in stages:
        key, status = StageKey.of(stage), mapping(stage.get("status"))
        told = _conditions(status)
        ready.add_metric(
            key, float(any(type_ == "Ready" and value == 1 for (type_, _), value in told.items()))
        )
        for kind, count in _counts(stage, status).items():
            replicas.add_metric((*key, kind), count)
        if isinstance(status.get("restarts", 0), int):
            restarts.add_metric(key, status.get("restarts", 0))
        for condition, value in told.items():
            conditions.add_metric((*key, *condition), value)
        world = mapping(status.get("topology")).get("worldSize", "")
        info.add_metric((*key, text(status.get("model")), text(status.get("revision")), str(world)), 1)
    yield from (ready, replicas, restarts, conditions, info)


def ranks(stages: Iterable[Manifest]) -> Mapping[str, int]:
    """How many ranks all stages ask for, and how many are of replicas that serve."""
    found = {"desired": 0, "ready": 0}
    for stage in stages:
        spec, status = mapping(stage.get("spec")), mapping(stage.get("status"))
        world = mapping(status.get("topology")).get("worldSize", 0)
        counts = _counts(stage, status)
        if isinstance(world, int):
            wanted = 0 if spec.get("suspend") is True else counts.get("desired", 0)
            found["desired"] += world * wanted
            found["ready"] += world * counts.get("ready", 0)
    return found


def _conditions(status: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Type and reason of each condition, and what it says."""
    found = [mapping(condition) for condition in items(status.get("conditions"))]
    return {
        (text(one.get("type")), text(one.get("reason"))): _TRUTH.get(text(one.get("status")), _UNKNOWN)
        for one in found
        if one.get("type")
    }


def _counts(stage: Manifest, status: Mapping[str, Any]) -> dict[str, int]:
    phases = Tally(text(mapping(replica).get("phase")) for replica in items(status.get("replicaStatuses")))
    counts = {
        "desired": mapping(stage.get("spec")).get("replicas", 1),
        "ready": status.get("readyReplicas", 0),
        "updated": status.get("updatedReplicas", 0),
        **{kind: phases[phase.value] for kind, phase in _WAITING.items()},
    }
    return {kind: count for kind, count in counts.items() if isinstance(count, int)}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping at all."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The value, if it is a list at all."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    """The value, if it is a text at all."""
    return value if isinstance(value, str) else ""
