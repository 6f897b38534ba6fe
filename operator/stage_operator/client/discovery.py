"""What the API server serves beside the kinds that every cluster has. Found out at start, and again now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stage_operator.client.kube import NODES, Kube, Missing, Refused, Resource, Trouble, resource_of
from stage_operator.values import Api

_POD_GROUPS: Final = "scheduling.k8s.io"
_POD_GROUP_VERSIONS: Final = ("v1", "v1beta1")  # whose fields we know, newest first
_VOLCANO: Final = "scheduling.volcano.sh/v1beta1"
_COSCHEDULING: Final = "scheduling.x-k8s.io/v1alpha1"
_MONITORS: Final = "monitoring.coreos.com/v1"

CHILD_KINDS: Final = (
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
"""Children that every cluster knows. Secrets are made and never read."""


async def discover(kube: Kube, *, nodes: bool) -> Api:
    """Ask the API server. Trouble if it can't say."""
    groups = await kube.fetch("/apis")
    served = {
        version["groupVersion"]: group["name"]
        for group in groups.get("groups", ())
        for version in group.get("versions", ())
    }
    own = tuple(f"{_POD_GROUPS}/{version}" for version in _POD_GROUP_VERSIONS)
    return Api(
        pod_group=await _first(kube, served, own, "podgroups"),
        volcano=await _first(kube, served, (_VOLCANO,), "podgroups"),
        coscheduling=await _first(kube, served, (_COSCHEDULING,), "podgroups"),
        pod_monitor=await _first(kube, served, (_MONITORS,), "podmonitors"),
        nodes=nodes,
    )


async def require(kube: Kube, resource: Resource, *, timeout_s: float) -> None:
    """Make sure that a kind is served. KubeError if it isn't, or nobody says so."""
    found = await kube.fetch(f"/apis/{resource.api_version}", timeout_s=timeout_s)
    if all(kind["name"] != resource.plural for kind in found.get("resources", ())):
        raise Trouble(f"{resource.plural} are not served")


async def nodes_allowed(kube: Kube) -> bool:
    """Whether this program may list the nodes."""
    try:
        await kube.fetch(f"{NODES.path(None)}?limit=1")
    except Refused:
        return False
    return True


def children(api: Api) -> tuple[Resource, ...]:
    """The kinds of children that can be listed."""
    optional = (
        (api.pod_group or api.volcano or api.coscheduling, "PodGroup"),
        (api.pod_monitor, "PodMonitor"),
    )
    kinds = (*CHILD_KINDS, *((version, kind) for version, kind in optional if version is not None))
    return tuple(resource_of(version, kind) for version, kind in kinds)


async def _first(kube: Kube, served: dict[str, str], versions: Sequence[str], plural: str) -> str | None:
    """The first of the versions in which the kind is served."""
    for version in versions:
        if version in served:
            try:
                kinds = await kube.fetch(f"/apis/{version}")
            except Missing:
                continue
            if any(kind["name"] == plural for kind in kinds.get("resources", ())):
                return version
    return None
