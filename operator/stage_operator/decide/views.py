"""What the objects of a stage say, as values: its pods, and the nodes that they are on.

Reads what Kubernetes writes: nothing in here decides anything. Times are UNIX seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stage_api import names
from stage_api.failure import Reason
from stage_api.outcome import TerminationReport
from stage_operator.values import Gone, Objects

Raw = Mapping[str, Any]

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"  # an admin says that the node is powered off
DRAIN_TAINTS: Final = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "node.kubernetes.io/unschedulable",
    }
)
"""What says that a node is about to be emptied, beside spec.unschedulable."""

_ON_ITS_WAY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""What a kubelet says of a container that waits as it should; it has words without end for one that doesn't."""

_LOST_STATES: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
"""What a kubelet says of a container that it lost: its node was off meanwhile."""

_OF_POD_REASON: Final = {
    "Evicted": Reason.EVICTED,
    "NodeLost": Reason.NODE_LOST,
    "NodeShutdown": Reason.NODE_DRAINED,
    "Preempting": Reason.PREEMPTED,
    "Shutdown": Reason.NODE_DRAINED,
    "Terminated": Reason.NODE_DRAINED,  # a kubelet that shuts down in an orderly way
}
_OF_DISRUPTION: Final = {
    "DeletionByDeviceTaintManager": Reason.EVICTED,
    "DeletionByPodGC": Reason.NODE_LOST,
    "DeletionByTaintManager": Reason.NODE_LOST,
    "EvictionByEvictionAPI": Reason.EVICTED,
    "PreemptionByScheduler": Reason.PREEMPTED,
    "TerminationByKubelet": Reason.EVICTED,
}


_LAST_S: Final = 253_402_300_799.0
"""The end of the year 9999, past which no time can be written."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pod ended by itself."""

    at_s: float | None
    exit_code: int | None
    """None where no container of ours ran."""
    reason: Reason | None
    message: str
    report: TerminationReport | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something doesn't come about that may still come about by itself."""

    reason: str
    message: str
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of the stage."""

    name: str
    uid: str
    replica: int
    epoch: int
    ordinal: int
    revision: str
    created_s: float | None = None
    node: str | None = None
    fetching_since_s: float | None = None
    """Since when its model has been fetched, if it still is."""
    started_s: float | None = None
    """When its engine or agent started."""
    ready_since_s: float | None = None
    delete_asked_s: float | None = None
    """When somebody asked for its deletion."""
    delete_due_s: float | None = None
    """When its grace ends."""
    disruption: Reason | None = None
    """Why Kubernetes takes it away, if it does."""
    ended: Ended | None = None
    over: bool = False
    """Nothing of it runs any more, nor ever will: its node has said so."""
    waiting: Trouble | None = None
    unschedulable: Trouble | None = None
    lame: Trouble | None = None
    """Another container of it has ended: Kubernetes never calls it ready again, though the replica lives."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that a pod is on."""

    name: str
    not_ready_since_s: float | None = None
    out_of_service: bool = False
    draining: bool = False
    gone: bool = False

    @property
    def surely_off(self) -> bool:
        """Whether nothing runs on it any more, on somebody's word."""
        return self.gone or self.out_of_service

    def lost_since_s(self, grace_s: float) -> float | None:
        """From when on it is taken as lost, be it in the future; None while it is well."""
        if self.surely_off:
            return self.not_ready_since_s or 0.0
        return None if self.not_ready_since_s is None else self.not_ready_since_s + grace_s


@dataclass(frozen=True, slots=True)
class Sight:
    """The pods and nodes of a stage."""

    pods: tuple[PodView, ...]
    strangers: frozenset[str]
    """Names of pods that bear the stage's label, or one of its names, and are not its own."""
    nodes: Mapping[str, NodeView]
    gone: Mapping[int, Gone]
    """By replica: pods that are known to have been there."""

    def node_of(self, pod: PodView) -> NodeView | None:
        """The node that a pod is on; None if it is on none, or nodes can't be seen."""
        return None if pod.node is None else self.nodes.get(pod.node)


def observe(objects: Objects) -> Sight:
    """The pods of a stage and the nodes that they are on. What can't be made sense of is a stranger."""
    uid = objects.stage["metadata"].get("uid")
    pods: list[PodView] = []
    strangers: set[str] = set()
    for raw in objects.pods:
        view = _pod(raw, objects.key.name) if is_owned(raw, uid) else None
        if view is None:
            strangers.add(str(raw["metadata"]["name"]))
        else:
            pods.append(view)
    on = {pod.node for pod in pods if pod.node is not None} if objects.api.nodes else set()
    nodes = {name: _node(name, objects.nodes.get(name)) for name in sorted(on)}
    return Sight(tuple(pods), frozenset(strangers), nodes, objects.gone)


def is_owned(raw: Raw, uid: str | None) -> bool:
    """Whether an object belongs to the stage with that uid."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return uid is not None and any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def unix_s(text: object) -> float | None:
    """A time of Kubernetes' as UNIX seconds; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return min(max(at_s, 0.0), _LAST_S)


def _pod(raw: Raw, stage: str) -> PodView | None:
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    if (place := names.pod_place(stage, metadata["name"])) is None:
        return None
    conditions = {str(one.get("type")): one for one in status.get("conditions") or ()}
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        replica=place.replica,
        epoch=place.epoch,
        ordinal=place.ordinal,
        revision=labels.get(names.LABEL_REVISION, ""),
        created_s=unix_s(metadata.get("creationTimestamp")),
        node=spec.get("nodeName"),
        fetching_since_s=_running_since(status, "initContainerStatuses", names.FETCH_CONTAINER),
        started_s=_running_since(status, "containerStatuses", names.CONTAINER),
        ready_since_s=_since(conditions.get("Ready"), "True"),
        delete_asked_s=_delete_asked(metadata),
        delete_due_s=unix_s(metadata.get("deletionTimestamp")),
        disruption=_disruption(conditions.get("DisruptionTarget")),
        ended=_ended(status, conditions.get("DisruptionTarget")),
        over=_is_over(status),
        waiting=_waiting(status),
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
        lame=_lame(status),
    )


def _delete_asked(metadata: Raw) -> float | None:
    due = unix_s(metadata.get("deletionTimestamp"))
    return None if due is None else due - (metadata.get("deletionGracePeriodSeconds") or 0)


def _since(condition: Raw | None, status: str) -> float | None:
    if condition is None or condition.get("status") != status:
        return None
    return unix_s(condition.get("lastTransitionTime"))


def _disruption(condition: Raw | None) -> Reason | None:
    if condition is None or condition.get("status") != "True":
        return None
    return _OF_DISRUPTION.get(str(condition.get("reason")), Reason.EVICTED)


def _containers(status: Raw) -> Iterator[Raw]:
    """The states of our own containers, the engine's first. A sidecar's life is not the replica's."""
    for key, name in (
        ("containerStatuses", names.CONTAINER),
        ("initContainerStatuses", names.FETCH_CONTAINER),
    ):
        yield from (one for one in status.get(key) or () if one.get("name") == name)


def _running_since(status: Raw, key: str, name: str) -> float | None:
    for one in status.get(key) or ():
        if one.get("name") == name:
            running = (one.get("state") or {}).get("running") or {}
            return unix_s(running.get("startedAt"))
    return None


def _ended(status: Raw, disruption: Raw | None) -> Ended | None:
    """How a pod ended: its own container, the one that fetches the model, or the pod as a whole."""
    why = _disruption(disruption) or _OF_POD_REASON.get(str(status.get("reason")))
    for one in _containers(status):
        over = (one.get("state") or {}).get("terminated")
        if over is None or (one.get("name") == names.FETCH_CONTAINER and over.get("exitCode") == 0):
            continue
        return _exit(over, why, status)
    if not _is_over(status):
        return None
    # It never ran (a kubelet that refused it), or another container of it ended it.
    text = ": ".join(part for part in (status.get("reason"), status.get("message")) if part)
    other = next(_failures(status), None)
    if other is not None and not text:
        text = f"container {other['name']} ended with {other['state']['terminated'].get('exitCode')}"
    at_s = None if other is None else unix_s(other["state"]["terminated"].get("finishedAt"))
    return Ended(at_s, None, why, text or f"the pod is {status.get('phase')}")


def _is_over(status: Raw) -> bool:
    return status.get("phase") in ("Failed", "Succeeded")


def _failures(status: Raw) -> Iterator[Raw]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            if (((one.get("state") or {}).get("terminated")) or {}).get("exitCode"):
                yield one


def _exit(over: Raw, why: Reason | None, status: Raw) -> Ended:
    detail = str(over.get("reason") or "")
    if why is None and detail == "OOMKilled":
        why = Reason.OOM_KILLED
    if why is None and detail in _LOST_STATES:
        why = Reason.NODE_LOST
    said = str(over.get("message") or "")
    report = TerminationReport.decode(said) if said else None
    message = report.message if report is not None else said.strip()
    if not message:
        message = str(status.get("message") or (detail if detail not in ("Completed", "Error") else ""))
    return Ended(unix_s(over.get("finishedAt")), over.get("exitCode"), why, message, report)


def _waiting(status: Raw) -> Trouble | None:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            if (reason := str(waiting.get("reason") or "")) not in _ON_ITS_WAY:
                text = str(waiting.get("message") or "no more is known")
                return Trouble(reason, f"container {one.get('name')}: {text}")
    return None


def _lame(status: Raw) -> Trouble | None:
    if _is_over(status):
        return None
    for one in status.get("containerStatuses") or ():
        over = (one.get("state") or {}).get("terminated")
        if over is not None and one.get("name") != names.CONTAINER:
            text = f"container {one.get('name')} ended with {over.get('exitCode')}"
            return Trouble("SidecarEnded", text, unix_s(over.get("finishedAt")))
    return None


def _unschedulable(condition: Raw | None) -> Trouble | None:
    if (
        condition is None
        or condition.get("status") != "False"
        or condition.get("reason") == "SchedulingGated"
    ):
        return None
    return Trouble(
        str(condition.get("reason") or "Unschedulable"),
        str(condition.get("message") or "no node has room for it"),
        unix_s(condition.get("lastTransitionTime")),
    )


def _node(name: str, raw: Raw | None) -> NodeView:
    if raw is None:
        return NodeView(name, gone=True)
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    taints = {str(taint.get("key")) for taint in spec.get("taints") or ()}
    ready = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), None)
    well = ready is None or ready.get("status") == "True"
    return NodeView(
        name,
        not_ready_since_s=None if well or ready is None else unix_s(ready.get("lastTransitionTime")),
        out_of_service=OUT_OF_SERVICE in taints,
        draining=bool(spec.get("unschedulable")) or bool(taints & DRAIN_TAINTS),
    )
