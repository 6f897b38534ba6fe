"""Pods that are scheduled together or not at all: the PodGroup of one life of a replica.

Three kinds of it exist, and a cluster may have none. What the cluster serves is found out, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stage_api import names
from stage_api.errors import Fault
from stage_api.stage import DiffusionStage
from stage_api.surroundings import GangMode
from stage_operator.manifests.identity import child
from stage_operator.values import Api, Manifest

VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"  # annotation of pods
VOLCANO_SCHEDULER: Final = "volcano"
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"  # label of pods


@dataclass(frozen=True, slots=True)
class Membership:
    """What tells a pod's scheduler of its group."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def mode(stage: DiffusionStage, api: Api) -> GangMode:
    """How the pods of a replica are held together: what was asked for, or the best that there is."""
    asked = stage.spec.gang.mode
    if stage.spec.parallelism.world_size == stage.spec.ranks_per_pod:
        return GangMode.NONE
    if asked is not GangMode.AUTO:
        return asked
    return next((served for served in _SERVED if _SERVED[served](api)), GangMode.NONE)


def fault(stage: DiffusionStage, api: Api) -> Fault | None:
    """What is wrong with the mode that was asked for: the cluster hasn't got it."""
    chosen = mode(stage, api)
    if chosen is GangMode.NONE or _SERVED[chosen](api):
        return None
    served = ", ".join(str(one.value) for one in _SERVED if _SERVED[one](api))
    expected = f"a kind that the cluster serves ({served or 'it serves none'})"
    return Fault("spec.gang.mode", expected, chosen.value)


def pod_group(stage: DiffusionStage, replica: int, epoch: int, api: Api) -> Manifest | None:
    """The group of one life, to be made before its pods; None where there is no need or no way."""
    chosen = mode(stage, api)
    api_version = None if chosen is GangMode.NONE else _SERVED[chosen](api)
    if api_version is None:
        return None
    pods = stage.spec.parallelism.world_size // stage.spec.ranks_per_pod
    spec: Manifest = {"minMember": pods}
    if chosen is GangMode.POD_GROUP:
        spec = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    elif chosen is GangMode.COSCHEDULING:
        spec["scheduleTimeoutSeconds"] = stage.spec.gang.schedule_timeout_seconds
    name = names.life_name(stage.metadata.name, replica, epoch)
    life = {names.LABEL_REPLICA: str(replica), names.LABEL_EPOCH: str(epoch)}
    return child(stage, "PodGroup", name, api_version=api_version, more_labels=life, spec=spec)


def membership(stage: DiffusionStage, replica: int, epoch: int, api: Api) -> Membership:
    """What the pods of one life say of their group."""
    group = names.life_name(stage.metadata.name, replica, epoch)
    match mode(stage, api):
        case GangMode.POD_GROUP:
            return Membership(spec={"schedulingGroup": {"podGroupName": group}})
        case GangMode.VOLCANO:
            return Membership(spec={"schedulerName": VOLCANO_SCHEDULER}, annotations={VOLCANO_GROUP: group})
        case GangMode.COSCHEDULING:
            return Membership(labels={COSCHEDULING_GROUP: group})
    return Membership()


_SERVED: Final = {
    GangMode.POD_GROUP: lambda api: api.pod_group,
    GangMode.VOLCANO: lambda api: api.volcano,
    GangMode.COSCHEDULING: lambda api: api.coscheduling,
}
"""What the cluster serves, the best first."""
