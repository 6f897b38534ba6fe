"""What a stage shows: its conditions, its phase and its counts.

Conditions carry the meaning. One keeps its time until its status changes, so that nothing is written at rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from stage_api import names
from stage_api import status as st
from stage_api.failure import HoldReason
from stage_api.replica_status import ReplicaPhase
from stage_api.stage import DiffusionStage
from stage_api.status import Condition, ConditionStatus, FactsStatus
from stage_operator.decide import moments, told_by_pods
from stage_operator.decide.remembered_status import time_text
from stage_operator.decide.replica import LIVE, Replica
from stage_operator.decide.rollout import Settled, Stop, Wish, begun_since, served_since
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import Sight, Trouble, unix_s
from stage_operator.values import Refusal

NAME_CONFLICT: Final = "NameConflict"
POD_INVALID: Final = "PodInvalid"
UNSCHEDULABLE: Final = "Unschedulable"
ROLLING_OUT: Final = "RollingOut"
ROLLOUT_HALTED: Final = "RolloutHalted"
DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
_MAX_MESSAGE: Final = 1024
_SHOWN: Final = 8

_IMAGE_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""A kubelet says one and the other in turn; they are one thing to say."""


_SIDECAR_ADVICE: Final = (
    "the pod can't be ready without it. "
    "What is to be restarted goes into initContainers, with restartPolicy Always"
)

_UNSOUND: Final = frozenset({"BadRequest", "Invalid"})
"""What the API server calls a pod that can't be one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition without its time."""

    type: str
    holds: bool | None
    """None where it can't be told yet."""
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that conditions are made from."""

    stage: DiffusionStage
    wish: Wish
    replicas: Sequence[Replica]
    """As they are from now on."""
    settled: Settled
    available: frozenset[int]
    refusals: Sequence[Refusal]
    before: Sequence[Condition]
    sight: Sight
    timer: Timer
    said: told_by_pods.Words = field(default_factory=dict)
    facts: FactsStatus | None = None

    @property
    def serving(self) -> int:
        """Replicas that serve."""
        return sum(replica.ready for replica in self.replicas)

    @property
    def updated(self) -> int:
        """Replicas that have, or get, the spec as it is now."""
        return sum(replica.life.revision == self.wish.revision for replica in self.standing)

    @property
    def standing(self) -> list[Replica]:
        """Replicas that live, or are held."""
        return [one for one in self.replicas if one.phase in LIVE or one.phase is ReplicaPhase.HELD]


def findings(view: View) -> tuple[Finding, ...]:
    """Every condition of a stage whose spec is accepted."""
    degraded = _degraded(view)
    return (
        _accepted(view),
        _suspended(view),
        _scheduled(view),
        _model_ready(view),
        _facts_known(view),
        _available(view),
        _progressing(view),
        degraded,
        _failed(view),
        _ready(view, degraded),
    )


def refused(reason: str, message: str) -> tuple[Finding, ...]:
    """The conditions that a stage gets whose spec is not accepted; the others stay as they were."""
    text = _cut(message)
    return (Finding(st.ACCEPTED, False, reason, text), Finding(st.READY, False, "NotAccepted", text))


def merged(
    before: Sequence[Condition], found: Iterable[Finding], generation: int | None, now_s: float
) -> tuple[Condition, ...]:
    """The conditions with their times; those that nothing was found about stay, in their order."""
    old = {condition.type: condition for condition in before}
    for finding in found:
        status = _status(finding.holds)
        was = old.get(finding.type)
        kept = was.last_transition_time if was is not None and was.status is status else None
        old[finding.type] = Condition(
            type=finding.type,
            status=status,
            reason=finding.reason,
            message=_cut(finding.message),
            last_transition_time=kept or time_text(now_s),
            observed_generation=generation,
        )
    return tuple(old.values())


def selector(stage: str) -> str:
    """Selector of the pods that serve."""
    return f"{names.LABEL_STAGE}={stage},{names.LABEL_RANK0}=true"


def _accepted(view: View) -> Finding:
    """The contract is kept; whether its pods are sound, where a template is laid over them, the API server says."""
    for refusal in view.refusals:
        if _is_unsound(refusal):
            where = "spec.podTemplate, spec.resources and the namespace's LimitRanges"
            text = f"the API server doesn't take the pods, see {where}: {refusal.message}"
            return Finding(st.ACCEPTED, False, POD_INVALID, text)
    return Finding(st.ACCEPTED, True, "Valid")


def _is_unsound(refusal: Refusal) -> bool:
    return refusal.kind == "Pod" and refusal.reason in _UNSOUND


def _suspended(view: View) -> Finding:
    if not view.wish.spec.suspend:
        return Finding(st.SUSPENDED, False, "Running")
    left = sum(replica.phase is not ReplicaPhase.SUSPENDED for replica in view.replicas)
    text = f"spec.suspend is true; {f'replicas that still end: {left}' if left else 'there are no pods'}"
    return Finding(st.SUSPENDED, True, "Suspended", text)


def _scheduled(view: View) -> Finding:
    waiting = list(_unschedulable(view))
    if waiting:
        name, trouble = waiting[0]
        more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
        return Finding(st.SCHEDULED, False, UNSCHEDULABLE, f"pod {name}{more}: {trouble.message}")
    live = [replica for replica in view.replicas if replica.phase in LIVE]
    for pod in (pod for replica in live for pod in replica.pods if pod.gates and pod.node is None):
        text = f"pod {pod.name} waits until somebody lifts its scheduling gates: {pod.gates}"
        return Finding(st.SCHEDULED, None, "SchedulingGated", text)
    if any(replica.missing or any(pod.node is None for pod in replica.pods) for replica in live):
        return Finding(st.SCHEDULED, None, "Scheduling")
    return Finding(st.SCHEDULED, True, "Scheduled" if live else "NoPods")


def _model_ready(view: View) -> Finding:
    for replica in view.replicas:
        history = replica.life.history
        if history.held is HoldReason.MODEL_INVALID and history.last is not None:
            return Finding(st.MODEL_READY, False, "ModelInvalid", history.last.message)
    if view.stage.spec.model.source.embedded is not None:
        return Finding(st.MODEL_READY, True, "InImage", "the model comes with the image")
    if view.serving:
        return Finding(st.MODEL_READY, True, "Loaded")
    doing = told_by_pods.starts(view.replicas, view.said)
    if any(pod.fetching_since_s is not None for replica in view.replicas for pod in replica.pods):
        return Finding(st.MODEL_READY, False, "Fetching", f"the model is being fetched{doing}")
    return Finding(st.MODEL_READY, None, "NotLoadedYet", doing.removeprefix("; "))


def _facts_known(view: View) -> Finding:
    told = view.facts
    if told is not None:
        others = told_by_pods.differing(view.replicas, view.said, told)
        if others:
            which = ", ".join(map(str, others[:_SHOWN]))
            text = f"replica {told.replica} tells something else than: {which}"
            return Finding(st.FACTS_KNOWN, True, "ReplicasDiffer", text)
        return Finding(st.FACTS_KNOWN, True, "Told")
    if (silent := told_by_pods.unreachable(view.replicas, view.said, view.wish.revision)) is not None:
        text = f"pod {silent[0]} can't be asked by the operator: {silent[1]}"
        return Finding(st.FACTS_KNOWN, None, "Unreachable", text)
    return Finding(st.FACTS_KNOWN, None, "NotAskedYet" if view.serving else "NoReplicaServes")


def _available(view: View) -> Finding:
    count = len(view.available)
    if count:
        return Finding(st.AVAILABLE, True, "ReplicasAvailable", f"{count} of {view.wish.replicas} serve")
    return Finding(st.AVAILABLE, False, "Suspended" if view.wish.spec.suspend else "NoReplicaServes")


def _progressing(view: View) -> Finding:
    settled, rollout = view.settled, view.wish.spec.rollout
    text = _updated(view)
    if settled.halted:
        why = "new replicas fail; change the spec, or apply the old one again"
        return Finding(st.PROGRESSING, False, ROLLOUT_HALTED, f"{text}; {why}")
    if settled.outdated and rollout.paused:
        return Finding(st.PROGRESSING, False, "RolloutPaused", text)
    if not settled.outdated and _is_settled(view):
        return Finding(st.PROGRESSING, False, "Complete", _kept_back(view))
    if _is_stuck(view):
        return Finding(
            st.PROGRESSING, False, DEADLINE_EXCEEDED, f"{text}, and nothing has moved for too long"
        )
    was = _before(view, st.PROGRESSING)
    # A stage of one replica has none left to replace as soon as it is ended.
    replaced = any(why in (Stop.REPLACED, Stop.LIFTED) for why in settled.stopped.values())
    rolling = settled.outdated or replaced or (was is not None and was.reason == ROLLING_OUT)
    return Finding(st.PROGRESSING, True, ROLLING_OUT if rolling else "ReplicasChanging", text)


def _updated(view: View) -> str:
    return f"{view.updated} of {view.wish.replicas} replicas have the spec as it is now"


def _kept_back(view: View) -> str:
    """That some replicas are to keep an older spec, if so."""
    if view.updated >= view.wish.replicas:
        return ""
    return f"{_updated(view)}; spec.rollout.partition keeps those below {view.wish.spec.rollout.partition} as they are"


def _is_settled(view: View) -> bool:
    if view.wish.spec.suspend:
        return all(replica.phase is ReplicaPhase.SUSPENDED for replica in view.replicas)
    held = sum(replica.phase is ReplicaPhase.HELD for replica in view.replicas)
    return len(view.replicas) == view.wish.replicas == len(view.available) + held


def _is_stuck(view: View) -> bool:
    """Whether no replica began or became ready for as long as the deadline says."""
    was = _before(view, st.PROGRESSING)
    moves = [
        at_s
        for replica in view.replicas
        for at_s in (begun_since(replica.life, view.sight), served_since(replica))
        if at_s is not None
    ]
    if was is not None:
        mark, said_s = f"{was.status} {was.reason}", unix_s(was.last_transition_time)
        since_s = view.sight.since(moments.PROGRESS, mark, said_s)
        if since_s is not None and was.reason == DEADLINE_EXCEEDED:
            same = was.observed_generation == view.stage.metadata.generation
            return same and not any(at_s > since_s for at_s in moves)
        if since_s is not None and was.status is ConditionStatus.TRUE:
            moves.append(since_s)
    return bool(moves) and view.timer.due(max(moves) + view.wish.spec.rollout.progress_deadline_seconds)


def _degraded(view: View) -> Finding:
    for reason, message in _troubles(view):
        return Finding(st.DEGRADED, True, reason, message)
    return Finding(st.DEGRADED, False, "AsExpected")


def _troubles(view: View) -> Iterator[tuple[str, str]]:
    """What keeps replicas from serving, the worst first."""
    for refusal in view.refusals:
        reason = NAME_CONFLICT if refusal.reason == "AlreadyExists" else f"{refusal.kind}Refused"
        yield (
            POD_INVALID if _is_unsound(refusal) else reason,
            f"{refusal.kind} {refusal.name}: {refusal.message}",
        )
    yield from (("ReplicaHeld", told(one)) for one in view.replicas if one.phase is ReplicaPhase.HELD)
    pods = [pod for one in view.standing for pod in one.pods if pod.ready_since_s is None]
    for pod in pods:
        if (trouble := pod.waiting or told_by_pods.stuck(pod, view.said)) is not None:
            reason = "ImagePullBackOff" if trouble.reason in _IMAGE_PULL else trouble.reason
            yield reason, f"pod {pod.name}: {trouble.message}"
    for name, lame in ((pod.name, pod.lame) for pod in pods):
        if lame is not None:
            yield lame.reason, f"pod {name}: {lame.message}; {_SIDECAR_ADVICE}"
    if not view.wish.spec.suspend:
        yield from ((_why_lost(one), told(one)) for one in view.replicas if one.is_lost)
    yield from (trouble for one in view.standing for trouble in _not_ready(view, one))
    for name, trouble in _unschedulable(view):
        limit_s = view.wish.spec.gang.schedule_timeout_seconds
        if trouble.since_s is not None and view.timer.due(trouble.since_s + limit_s):
            yield UNSCHEDULABLE, f"pod {name} finds no node: {trouble.message}"


def _why_lost(replica: Replica) -> str:
    last = replica.life.history.last
    disturbed = last is not None and last.reason is not None and last.reason.is_disruption
    return "ReplicaDisrupted" if disturbed else "ReplicaFailing"


def _not_ready(view: View, replica: Replica) -> Iterator[tuple[str, str]]:
    """What is known of a replica that served in this life and doesn't any more."""
    if replica.phase is not ReplicaPhase.NOT_READY:
        return
    grace_s = view.wish.spec.failure_policy.node_lost.grace_seconds
    for pod in (pod for pod in replica.pods if pod.ready_since_s is None):
        node = view.sight.node_of(pod)
        if node is not None and node.not_ready_since_s is not None:
            text = f"node {node.name} doesn't answer; after {grace_s} s its replicas begin another life"
            yield "NodeNotReady", f"pod {pod.name}: {text}"
        elif pod.ended is not None:
            yield "ReplicaNotReady", f"pod {pod.name} has ended, and why may be known by the others' ends"
        else:
            yield "ReplicaNotReady", f"pod {pod.name} is not ready"


def told(replica: Replica) -> str:
    """How a replica ended last, in words."""
    history = replica.life.history
    last = history.last
    if last is None:
        return f"replica {replica.index} is {replica.phase}"
    facts = [
        f"exit code {last.exit_code}" if last.exit_code is not None else "",
        str(last.reason or ""),
        f"rank {last.rank}" if last.rank is not None else "",
        f"on node {last.node}" if last.node else "",
    ]
    text = f"replica {replica.index} ended: {', '.join(fact for fact in facts if fact) or 'unknown'}"
    if history.held is not None:
        text += f"; held: {history.held.meaning}"
    return f"{text}: {last.message}" if last.message else text


def _failed(view: View) -> Finding:
    for replica in view.replicas:
        if replica.phase is ReplicaPhase.HELD and replica.life.history.held is not None:
            return Finding(st.FAILED, True, replica.life.history.held, told(replica))
    return Finding(st.FAILED, False, "NoneHeld")


def _ready(view: View, degraded: Finding) -> Finding:
    wanted, serving = view.wish.replicas, view.serving
    if view.wish.spec.suspend:
        return Finding(st.READY, False, "Suspended")
    if wanted == 0:
        left = len(view.replicas)
        text = f"replicas that still end: {left}" if left else ""
        return Finding(st.READY, not left, "ReplicasEnding" if left else "NoReplicasWanted", text)
    if serving < wanted:
        reason = degraded.reason if degraded.holds else "ReplicasNotReady"
        text = f"{serving} of {wanted} replicas serve"
        more = f"; {degraded.message}" if degraded.holds else told_by_pods.starts(view.replicas, view.said)
        return Finding(st.READY, False, reason, text + more)
    if view.settled.outdated:
        return Finding(st.READY, False, ROLLING_OUT, _updated(view))
    return Finding(st.READY, True, "ReplicasReady", _kept_back(view))


def _unschedulable(view: View) -> Iterator[tuple[str, Trouble]]:
    for replica in view.standing:
        for pod in replica.pods:
            if pod.unschedulable is not None and pod.node is None:
                yield pod.name, pod.unschedulable


def _before(view: View, type_: str) -> Condition | None:
    return next((condition for condition in view.before if condition.type == type_), None)


def _status(holds: bool | None) -> ConditionStatus:
    if holds is None:
        return ConditionStatus.UNKNOWN
    return ConditionStatus.TRUE if holds else ConditionStatus.FALSE


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
