"""What a drained node may do to a stage: the PodDisruptionBudgets.

A replica of one pod may lose it to a drain as long as enough others serve; the pod drains by itself. A replica of
several pods is broken as a whole by the loss of any, one eviction at a time. So its pods are never evicted: the
operator, which sees the node's cordon, moves the replica as one. Budgets count pods from below (minAvailable), as
counting from above would need the cluster to know how many pods a stage should have.
"""

from __future__ import annotations

from collections.abc import Iterable

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child, selector
from stage_operator.values import Manifest


def budgets(stage: DiffusionStage, replicas: Iterable[int] | None = None) -> tuple[Manifest, ...]:
    """The budgets of the stage as it should be; `replicas` are the indexes of those that it has."""
    spec, name = stage.spec, stage.metadata.name
    pods = spec.parallelism.world_size // spec.ranks_per_pod
    if pods == 1:
        kept = max(0, spec.replicas - spec.disruption.room(spec.replicas))
        return (_budget(stage, name, selector(stage), kept),)
    return tuple(
        _budget(
            stage,
            names.replica_name(name, replica),
            {**selector(stage), names.LABEL_REPLICA: str(replica)},
            pods,
        )
        for replica in (range(spec.replicas) if replicas is None else replicas)
    )


def _budget(stage: DiffusionStage, name: str, pods: dict[str, str], kept: int) -> Manifest:
    return child(
        stage,
        "PodDisruptionBudget",
        name,
        api_version="policy/v1",
        spec={
            "minAvailable": kept,
            "selector": {"matchLabels": pods},
            # A pod that doesn't serve must not hold up a drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
