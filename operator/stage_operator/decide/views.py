"""What the objects of a stage say, as values: its pods, and the nodes that they are on.

Reads what Kubernetes writes: nothing in here decides anything. Times are UNIX seconds by the operator's own clock
(`moments.py`), but where another is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from stage_api import names
from stage_api.failure import Reason
from stage_api.outcome import TerminationReport
from stage_operator.decide import moments
from stage_operator.values import Gone, Objects, Seen

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
    unasked: bool
    """Whether it ended before anybody asked it to go, as far as that can be known."""
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
    """By the API server's clock."""
    node: str | None = None
    fetching_since_s: float | None = None
    """Since when its model has been fetched, if it still is."""
    started_s: float | None = None
    """When its engine or agent started."""
    ready_since_s: float | None = None
    saw_ready_s: float | None = None
    """When it became ready last, if the operator saw it do so; it may have ceased to be."""
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
    gates: str = ""
    """What has to be lifted before a node is looked for, in one text."""
    unmade_since_s: float | None = None
    """Since when its node has not got as far as a sandbox for it: volumes are waited for, say."""
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
    of_stage: Mapping[str, Seen] = field(default_factory=dict)
    """Since when what its status says is so."""

    def node_of(self, pod: PodView) -> NodeView | None:
        """The node that a pod is on; None if it is on none, or nodes can't be seen."""
        return None if pod.node is None else self.nodes.get(pod.node)

    def since(self, moment: str, mark: object, said_s: float | None) -> float | None:
        """Since when something that the stage's status says is so, by the operator's own clock."""
        seen = self.of_stage.get(moment)
        return moments.since(seen if seen is not None and seen.mark == str(mark) else None, said_s)


def observe(objects: Objects) -> Sight:
    """The pods of a stage and the nodes that they are on. What can't be made sense of is a stranger."""
    uid = objects.stage["metadata"].get("uid")
    pods: list[PodView] = []
    strangers: set[str] = set()
    for raw in objects.pods:
        view = _pod(raw, objects.key.name, _seen(objects, raw)) if is_owned(raw, uid) else None
        if view is None:
            strangers.add(str(raw["metadata"]["name"]))
        else:
            pods.append(view)
    on = {pod.node for pod in pods if pod.node is not None} if objects.api.nodes else set()
    nodes = {name: _node(name, objects.nodes.get(name), objects) for name in sorted(on)}
    return Sight(tuple(pods), frozenset(strangers), nodes, objects.gone, _seen(objects, objects.stage))


def _seen(objects: Objects, raw: Raw) -> Mapping[str, Seen]:
    metadata = raw["metadata"]
    return objects.seen.get(str(metadata.get("uid") or metadata["name"]), {})


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


def _pod(raw: Raw, stage: str, seen: Mapping[str, Seen]) -> PodView | None:
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    if (place := names.pod_place(stage, metadata["name"])) is None:
        return None
    so = moments.of_pod(raw)

    def since(moment: str, said_s: float | None) -> float | None:
        return moments.since(seen.get(moment), said_s) if moment in so else None

    target = moments.condition(status, "DisruptionTarget")
    asked_s = since(moments.ASKED, _delete_asked(metadata))
    ended = _ended(status, target)
    if ended is not None:
        unasked = _ended_unasked(raw, seen, ended.at_s)
        ended = replace(ended, at_s=since(moments.ENDED, ended.at_s), unasked=unasked)
    unschedulable = _unschedulable(moments.condition(status, "PodScheduled"))
    if unschedulable is not None:
        unschedulable = replace(unschedulable, since_s=since(moments.UNSCHEDULABLE, unschedulable.since_s))
    was_ready = seen.get(moments.READY)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        replica=place.replica,
        epoch=place.epoch,
        ordinal=place.ordinal,
        revision=labels.get(names.LABEL_REVISION, ""),
        created_s=unix_s(metadata.get("creationTimestamp")),
        node=spec.get("nodeName"),
        fetching_since_s=since(moments.FETCHING, unix_s(so.get(moments.FETCHING))),
        started_s=since(moments.STARTED, unix_s(so.get(moments.STARTED))),
        ready_since_s=since(moments.READY, unix_s(so.get(moments.READY))),
        saw_ready_s=None if was_ready is None or not was_ready.witnessed else was_ready.since_s,
        delete_asked_s=asked_s,
        delete_due_s=None if asked_s is None else asked_s + _grace_s(metadata),
        disruption=_disruption(target),
        ended=ended,
        over=moments.is_over(status),
        waiting=_waiting(status),
        unschedulable=unschedulable,
        gates=", ".join(str(gate.get("name")) for gate in spec.get("schedulingGates") or ()),
        unmade_since_s=since(moments.UNMADE, _said(moments.condition(status, "PodReadyToStartContainers"))),
        lame=_lame(status),
    )


def _grace_s(metadata: Raw) -> float:
    return float(metadata.get("deletionGracePeriodSeconds") or 0)


def _delete_asked(metadata: Raw) -> float | None:
    """When a pod's deletion was asked for, by the API server's clock."""
    due = unix_s(metadata.get("deletionTimestamp"))
    return None if due is None else due - _grace_s(metadata)


def _ended_unasked(raw: Raw, seen: Mapping[str, Seen], ended_s: float | None) -> bool:
    """Whether a pod ended before anybody asked it to go. `ended_s` is its node's word.

    The operator saw one after the other, or the API server says so: it leaves no grace to what has ended. Else the
    node's time and the API server's must be further apart than clocks are; it is in doubt for the pod.
    """
    metadata = raw["metadata"]
    if (asked_s := _delete_asked(metadata)) is None:
        return True
    ended, asked = seen.get(moments.ENDED), seen.get(moments.ASKED)
    if ended is not None and asked is not None and ended.since_s != asked.since_s:
        return ended.since_s < asked.since_s
    if _grace_s(metadata) == 0:
        return True
    return ended_s is not None and ended_s < asked_s - moments.SKEW_S


def _said(condition: Raw | None) -> float | None:
    return None if condition is None else unix_s(condition.get("lastTransitionTime"))


def _disruption(condition: Raw | None) -> Reason | None:
    if condition is None or condition.get("status") != "True":
        return None
    return _OF_DISRUPTION.get(str(condition.get("reason")), Reason.EVICTED)


def _ended(status: Raw, disruption: Raw | None) -> Ended | None:
    """How a pod ended, by its node's clock: its own container, the one that fetches the model, or it as a whole."""
    why = _disruption(disruption) or _OF_POD_REASON.get(str(status.get("reason")))
    for over in moments.ends(status):
        return _exit(over, why, status)
    if not moments.is_over(status):
        return None
    # It never ran (a kubelet that refused it), or another container of it ended it.
    text = ": ".join(part for part in (status.get("reason"), status.get("message")) if part)
    other = next(_failures(status), None)
    if other is not None and not text:
        text = f"container {other['name']} ended with {other['state']['terminated'].get('exitCode')}"
    at_s = None if other is None else unix_s(other["state"]["terminated"].get("finishedAt"))
    return Ended(at_s, True, None, why, text or f"the pod is {status.get('phase')}")


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
    return Ended(unix_s(over.get("finishedAt")), True, over.get("exitCode"), why, message, report)


def _waiting(status: Raw) -> Trouble | None:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            if (reason := str(waiting.get("reason") or "")) not in _ON_ITS_WAY:
                text = str(waiting.get("message") or "no more is known")
                return Trouble(reason, f"container {one.get('name')}: {text}")
    return None


def _lame(status: Raw) -> Trouble | None:
    if moments.is_over(status):
        return None
    for one in status.get("containerStatuses") or ():
        over = (one.get("state") or {}).get("terminated")
        if over is not None and one.get("name") != names.CONTAINER:
            text = f"container {one.get('name')} ended with {over.get('exitCode')}"
            return Trouble("SidecarEnded", text, unix_s(over.get("finishedAt")))
    return None


def _unschedulable(condition: Raw | None) -> Trouble | None:
    if condition is None or not moments.is_unschedulable(condition):
        return None
    return Trouble(
        str(condition.get("reason") or "Unschedulable"),
        str(condition.get("message") or "no node has room for it"),
        unix_s(condition.get("lastTransitionTime")),
    )


def _node(name: str, raw: Raw | None, objects: Objects) -> NodeView:
    if raw is None:
        return NodeView(name, gone=True)
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    taints = {str(taint.get("key")) for taint in spec.get("taints") or ()}
    well = moments.NOT_READY not in moments.of_node(raw)
    said_s = _said(moments.condition(status, "Ready"))
    return NodeView(
        name,
        not_ready_since_s=None if well else moments.since(_seen(objects, raw).get(moments.NOT_READY), said_s),
        out_of_service=OUT_OF_SERVICE in taints,
        draining=bool(spec.get("unschedulable")) or bool(taints & DRAIN_TAINTS),
    )
