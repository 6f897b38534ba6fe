"""Everything that a stage has beside its pods, and what is made once a life."""

from __future__ import annotations

from collections.abc import Iterable

from stage_api.stage import DiffusionStage
from stage_operator.manifests.config_map import config_map
from stage_operator.manifests.disruption import budgets
from stage_operator.manifests.monitor import pod_monitor
from stage_operator.manifests.network import network_policy
from stage_operator.manifests.service import ranks, requests
from stage_operator.manifests.service_account import service_account
from stage_operator.values import Api, Manifest


def children(
    stage: DiffusionStage, api: Api, replicas: Iterable[int] | None = None, *, operator_at: str | None = None
) -> tuple[Manifest, ...]:
    """What should be there as long as the stage is, in the order in which pods need it.

    `replicas`: indexes of those that it has; left out, those that it will have. `operator_at`: namespace of the
    operator's pods.

    What is there beside these can go; but a ConfigMap and a PodGroup only once no pod refers to them.
    """
    spec = stage.spec
    made = [config_map(stage), service_account(stage), requests(stage)]
    if spec.parallelism.world_size > spec.ranks_per_pod:
        made.append(ranks(stage))
    made += budgets(stage, replicas)
    if (policy := network_policy(stage, operator_at)) is not None:
        made.append(policy)
    if spec.monitoring.pod_monitor.enabled and api.pod_monitor is not None:
        made.append(pod_monitor(stage, api.pod_monitor))
    return tuple(made)
