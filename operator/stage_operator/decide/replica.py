"""One replica through its lives: begun, come up, ready, over, its pods gone, and the wait before the next.

A life is over for good once the record says so; only then are its pods deleted. So whoever starts with nothing but
the record and the pods decides as the one before would have, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stage_api import names
from stage_api.failure import FailurePolicySpec, History, Hold, NodeLostSpec, Reason, decide, lift
from stage_api.replica_status import ReplicaPhase
from stage_api.spec import DiffusionStageSpec
from stage_operator.decide.evidence import End, awaits_cause, first_end, start_timeout
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import PodView, Sight
from stage_operator.manifests.pod import STARTUP_SPARE_S, pod_grace_s
from stage_operator.values import DeletePod

FAILURE_GRACE_S: Final = 5
"""For the pods of a life that has failed: nobody waits for their work any more."""
HELD_GRACE_S: Final = 30
"""How long the other pods of a held life may take to end by themselves, so that their logs stay."""
OWN_WORD_S: Final = 15
"""How long a start that takes too long may take to end by itself: it knows better why than who looks on."""
_A_BREAK_S: Final = 60

WHOLE: Final = frozenset(
    {ReplicaPhase.SCHEDULING, ReplicaPhase.STARTING, ReplicaPhase.READY, ReplicaPhase.NOT_READY}
)
"""All pods of the life have been there: one that isn't has been taken away."""
LIVE: Final = WHOLE | {ReplicaPhase.PENDING}
ONCE_READY: Final = frozenset({ReplicaPhase.READY, ReplicaPhase.NOT_READY})
DRAINING_REASONS: Final = frozenset({Reason.DELETED, Reason.EVICTED, Reason.PREEMPTED, Reason.NODE_DRAINED})
"""Ends that begin by asking a pod to go, which may still have work: the others stay as long as it does."""


_BLANK: Final = History()


@dataclass(frozen=True, slots=True)
class Life:
    """What is remembered of a replica: its life now, or its last, and how those before ended."""

    index: int
    epoch: int
    phase: ReplicaPhase
    revision: str
    pods: int
    """How many it has."""
    history: History = _BLANK
    begun_s: float | None = None
    ready_s: float | None = None
    """Since when it has been ready without a break."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A life beside what there is of it."""

    life: Life
    pods: tuple[PodView, ...] = ()
    """Those of this life, by ordinal."""
    older: tuple[PodView, ...] = ()
    """What is left of earlier lives."""

    @property
    def index(self) -> int:
        """Which replica."""
        return self.life.index

    @property
    def phase(self) -> ReplicaPhase:
        """Where it is in its life."""
        return self.life.phase

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self.life.phase is ReplicaPhase.READY

    @property
    def is_lost(self) -> bool:
        """Whether a life of it ended that nobody wanted to end, and it has not come back yet."""
        history = self.life.history
        if history.epoch is None or self.phase is ReplicaPhase.HELD:
            return False
        if self.phase in LIVE:
            comes_back = history.epoch == self.life.epoch - 1 and history.restart_at_s is not None
            return comes_back and self.phase not in ONCE_READY
        return history.epoch == self.life.epoch and self.phase is not ReplicaPhase.SUSPENDED

    @property
    def ready_since_s(self) -> float | None:
        """Since when all its pods have been ready; None if they aren't all."""
        since = [pod.ready_since_s for pod in self.pods]
        if self.missing or any(at_s is None for at_s in since):
            return None
        return max((at_s for at_s in since if at_s is not None), default=None)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ordinals of the pods that aren't there."""
        there = {pod.ordinal for pod in self.pods}
        return tuple(i for i in range(self.life.pods) if i not in there)


def gather(lives: Mapping[int, Life], pods: Sequence[PodView]) -> list[Replica]:
    """Each life with its pods, by index."""
    of = grouped(pods)
    return [
        Replica(
            life,
            tuple(pod for pod in of.get(index, ()) if pod.epoch == life.epoch),
            tuple(pod for pod in of.get(index, ()) if pod.epoch < life.epoch),
        )
        for index, life in sorted(lives.items())
    ]


def grouped(pods: Iterable[PodView]) -> dict[int, list[PodView]]:
    """The pods of each replica, the latest life last, each by ordinal."""
    of: dict[int, list[PodView]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.epoch, pod.ordinal)):
        of.setdefault(pod.replica, []).append(pod)
    return of


def advance(
    replica: Replica, stage: str, spec: DiffusionStageSpec, sight: Sight, timer: Timer, jitter: float
) -> Life:
    """The life after what its pods show now. One that is over stays so."""
    life = replica.life
    if life.phase not in LIVE:
        return life
    end = _end(replica, stage, spec, sight, timer)
    return (
        _standing(replica) if end is None else _judged(replica, end, spec.failure_policy, timer.now_s, jitter)
    )


def is_vacant(replica: Replica, sight: Sight, policy: NodeLostSpec, timer: Timer) -> bool:
    """Whether its last life is over and out of the way.

    Pods may be left of which nothing runs any more, or that are on a lost node; those of the next life have other
    names, and wait for nobody's answer.
    """
    if replica.phase in LIVE or replica.phase is ReplicaPhase.HELD:
        return False
    return all(pod.over or _is_lost(pod, sight, policy, timer) for pod in (*replica.pods, *replica.older))


def begun(life: Life, revision: str, pods: int, now_s: float) -> Life:
    """The next life. Where it isn't as the last one was, nothing that befell that one counts any more."""
    asked_for = life.phase is ReplicaPhase.SUSPENDED or life.history.held is not None
    fresh = asked_for or revision != life.revision
    return Life(
        index=life.index,
        epoch=life.epoch + 1,
        phase=ReplicaPhase.PENDING,
        revision=revision,
        pods=pods,
        history=lift(life.history) if fresh else life.history,
        begun_s=now_s,
    )


def stopped(life: Life) -> Life:
    """The life that is to end, because somebody wants something else."""
    return replace(life, phase=ReplicaPhase.DRAINING, ready_s=None)


def deletions(replica: Replica, spec: DiffusionStageSpec, sight: Sight, timer: Timer) -> list[DeletePod]:
    """The pods that must go now: of a life that is over, and of those before it."""
    policy = spec.failure_policy.node_lost
    doomed = list(replica.older)
    if replica.phase is ReplicaPhase.HELD:
        doomed += _not_ended(replica, spec, timer)
    elif replica.phase not in LIVE:
        doomed += replica.pods
    grace_s = None if replica.phase is ReplicaPhase.DRAINING else FAILURE_GRACE_S
    made = (_deletion(pod, grace_s, sight, policy, timer) for pod in doomed)
    return [deletion for deletion in made if deletion is not None]


def _end(replica: Replica, stage: str, spec: DiffusionStageSpec, sight: Sight, timer: Timer) -> End | None:
    life, policy = replica.life, spec.failure_policy.node_lost
    taken = [
        names.pod_name(stage, life.index, life.epoch, ordinal)
        for ordinal in replica.missing
        # Of one that was never seen whole, others that lack have not been made yet.
        if life.phase in WHOLE or _has_been(life, ordinal, sight)
    ]
    end = first_end(life.epoch, replica.pods, taken, sight, grace_s=policy.grace_seconds, timer=timer)
    if end is not None and awaits_cause(end, replica.pods, timer):
        return None
    return end or _overdue(replica, spec, timer)


def _has_been(life: Life, ordinal: int, sight: Sight) -> bool:
    """Whether a pod of the life was there and is no more: it is never made twice."""
    gone = sight.gone.get(life.index)
    return gone is not None and gone.epoch == life.epoch and ordinal in gone.ordinals


def _overdue(replica: Replica, spec: DiffusionStageSpec, timer: Timer) -> End | None:
    """The end of a life that does not come up. The clock runs once all its pods run; waiting for room is no fault."""
    life, startup = replica.life, spec.startup
    if life.phase in ONCE_READY or replica.ready_since_s is not None:
        return None
    for pod in replica.pods:
        since_s = pod.fetching_since_s
        if since_s is not None and timer.due(since_s + startup.fetch_timeout_seconds + OWN_WORD_S):
            said = start_timeout(life.epoch, startup.fetch_timeout_seconds, "the model is not fetched")
            return End(timer.now_s, said.model_copy(update={"node": pod.node}))
    starts = [pod.started_s for pod in replica.pods if pod.started_s is not None]
    if len(starts) < life.pods or not timer.due(max(starts) + startup.timeout_seconds + OWN_WORD_S):
        return None
    slow = next(pod for pod in replica.pods if pod.ready_since_s is None)
    why = "" if slow.lame is None else f", since {slow.lame.message},"
    said = start_timeout(life.epoch, startup.timeout_seconds, f"pod {slow.name} is not ready{why}")
    return End(timer.now_s, said.model_copy(update={"node": slow.node}))


def _judged(replica: Replica, end: End, policy: FailurePolicySpec, now_s: float, jitter: float) -> Life:
    life = replica.life
    decision = decide(
        policy,
        life.history,
        end.evidence,
        now_s=now_s,
        ready_for_s=_ready_for(replica, end.at_s),
        jitter=jitter,
    )
    if isinstance(decision.action, Hold):
        phase = ReplicaPhase.HELD
    elif end.evidence.reason in DRAINING_REASONS and any(_drains(pod) for pod in replica.pods):
        phase = ReplicaPhase.DRAINING
    else:
        phase = ReplicaPhase.TERMINATING
    return replace(life, phase=phase, history=decision.history, ready_s=None)


def _drains(pod: PodView) -> bool:
    """Whether it was asked to go and finishes what it runs, for which it needs the others."""
    return pod.delete_asked_s is not None and pod.ended is None


def _ready_for(replica: Replica, until_s: float) -> float | None:
    """How long a life had been ready without a break; None if it wasn't."""
    if (ready_s := replica.life.ready_s) is None:
        return None
    seen = _seen_ready(replica)
    if seen and len(seen) == replica.life.pods:
        ready_s = max(seen)  # what is written may be of another operator's clock
    return max(0.0, until_s - ready_s)


def _seen_ready(replica: Replica) -> list[float]:
    return [pod.saw_ready_s for pod in replica.pods if pod.saw_ready_s is not None]


def _standing(replica: Replica) -> Life:
    """The phase of a life that goes on."""
    life = replica.life
    if replica.missing:
        return life
    if (ready_s := replica.ready_since_s) is not None:
        if life.phase is ReplicaPhase.READY and life.ready_s is not None:
            # As it was written, unless a break was seen since; it may be of another clock that differs by a little.
            broken_s = max(_seen_ready(replica), default=life.ready_s)
            ready_s = life.ready_s if broken_s < life.ready_s + _A_BREAK_S else broken_s
        return replace(life, phase=ReplicaPhase.READY, ready_s=ready_s)
    if life.phase in ONCE_READY:
        return replace(life, phase=ReplicaPhase.NOT_READY, ready_s=None)
    bound = all(pod.node is not None for pod in replica.pods)
    return replace(life, phase=ReplicaPhase.STARTING if bound else ReplicaPhase.SCHEDULING)


def _not_ended(replica: Replica, spec: DiffusionStageSpec, timer: Timer) -> list[PodView]:
    """Pods of a held life that still run and must go, though their logs go with them: they hold devices."""
    alive = [pod for pod in replica.pods if pod.ended is None]
    ends = [pod.ended.at_s for pod in replica.pods if pod.ended is not None and pod.ended.at_s is not None]
    starts = [pod.started_s for pod in replica.pods if pod.started_s is not None]
    if ends:
        until_s = max(ends) + HELD_GRACE_S
    elif starts:
        # They never came up. Their nodes end them by the startup probe, which leaves the pods.
        node_s = spec.startup.timeout_seconds + STARTUP_SPARE_S + pod_grace_s(spec)
        until_s = max(starts) + node_s + HELD_GRACE_S
    else:
        return alive
    return alive if alive and timer.due(until_s) else []


def _is_lost(pod: PodView, sight: Sight, policy: NodeLostSpec, timer: Timer) -> bool:
    """Whether nobody answers for a pod any more."""
    node = sight.node_of(pod)
    if node is None:
        # Nodes can't be seen: what is not gone so long after its grace has nobody to end it.
        return _is_overdue(pod, policy, timer)
    lost_s = node.lost_since_s(policy.grace_seconds)
    return lost_s is not None and timer.due(lost_s)


def _is_overdue(pod: PodView, policy: NodeLostSpec, timer: Timer) -> bool:
    if pod.node is None or pod.delete_due_s is None:
        return False
    return timer.due(pod.delete_due_s + policy.force_delete_after_seconds)


def _deletion(
    pod: PodView, grace_s: int | None, sight: Sight, policy: NodeLostSpec, timer: Timer
) -> DeletePod | None:
    """How a pod is deleted now; None if that is under way already."""
    if _may_force(pod, sight, policy, timer):
        return DeletePod(pod.name, pod.uid, grace_seconds=0, force=True)
    if pod.delete_asked_s is not None:
        return None
    return DeletePod(pod.name, pod.uid, grace_seconds=grace_s)


def _may_force(pod: PodView, sight: Sight, policy: NodeLostSpec, timer: Timer) -> bool:
    """Whether its node is known to be off, or has kept silent for too long."""
    node = sight.node_of(pod)
    if node is not None and node.surely_off:
        return True
    if pod.delete_asked_s is None or not _is_lost(pod, sight, policy, timer):
        return False
    return timer.due(pod.delete_asked_s + policy.force_delete_after_seconds)
