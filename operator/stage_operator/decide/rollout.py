"""Which replicas end and which begin: to a new spec one whole replica after the other, to another number, off nodes
that are being emptied, or all at once for a stage that is suspended.

Works by what is there now, never by a plan made earlier. A replica that ends counts until its pods are gone, so no
more of them take up room than `replicas` and `maxSurge` together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from stage_api import names
from stage_api.failure import waits_s
from stage_api.replica_status import ReplicaPhase
from stage_api.revision import revision_of, spelled_revision_of
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage
from stage_operator.decide import moments
from stage_operator.decide.replica import LIVE, WHOLE, Life, Replica, begun, is_vacant, stopped
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import DRAIN_TAINTS, PodView, Sight

NO_ROOM_S: Final = 60
"""A replica beyond `replicas` that finds no node, or is over a quota, for so long is given up, and one is replaced in
its place."""
NO_VOLUME_S: Final = 120
"""And so long for one that has a node, which gets no volume for it: the old one may have to let go of that first."""
_RESTART_CHARS: Final = 6
HALTING_FAILURES: Final = 2
"""So many failures of new replicas halt a rollout."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What should be there."""

    spec: DiffusionStageSpec
    revision: str
    pods: int
    """Of each replica."""
    first_epoch: int = 0
    """Where the lives of a replica that is new begin to be counted."""
    same: frozenset[str] = frozenset()
    """That revision, and its name of older operators."""

    @property
    def replicas(self) -> int:
        """How many."""
        return 0 if self.spec.suspend else self.spec.replicas


class Stop(StrEnum):
    """Why a life is ended on purpose."""

    SUSPENDED = "the stage is suspended"
    LIFTED = "its spec has changed"
    SCALED_DOWN = "fewer replicas are wanted"
    REPLACED = "its spec is an older one"
    NO_ROOM = "there is no room for one more"
    NO_VOLUME = "its node gets nothing ready for it, as where another one holds the volume"
    NODE_DRAINED = "its node is being emptied"


@dataclass(frozen=True, slots=True)
class Settled:
    """The lives as they should be from now on."""

    lives: dict[int, Life]
    first_epoch: int
    halted: bool
    """Whether new replicas fail, and no more are replaced."""
    outdated: int
    """Replicas that are still to be replaced, be it later."""
    stopped: Mapping[int, Stop]
    """Those that are ended now on purpose, and why."""


def asked_restart(stage: DiffusionStage) -> str | None:
    """What the user's last request for a restart said."""
    said = stage.metadata.annotations.get(names.ANNOTATION_RESTART)
    return names.label_value(said) if said else None


def wanted_revision(stage: DiffusionStage) -> str:
    """The revision that pods should have. To ask for a restart is to ask for another one of the same spec."""
    return _restarted(revision_of(stage), stage)


def spelled_revision(stage: DiffusionStage) -> str:
    """What older operators called the wanted revision."""
    return _restarted(spelled_revision_of(stage), stage)


def _restarted(revision: str, stage: DiffusionStage) -> str:
    asked = asked_restart(stage)
    if asked is None:
        return revision
    return f"{revision}-{hashlib.sha256(asked.encode()).hexdigest()[:_RESTART_CHARS]}"


def settle(
    replicas: Iterable[Replica],
    wish: Wish,
    sight: Sight,
    timer: Timer,
    over_quota: frozenset[int] = frozenset(),
) -> Settled:
    """End, begin and forget lives, as far as may be done at once.

    `over_quota`: indexes of those whose pods the namespace has no room for.
    """
    return _Settling(list(replicas), wish, sight, timer, over_quota).done()


def is_available(replica: Replica, wish: Wish, timer: Timer) -> bool:
    """Whether it serves, and if it is new, has done so for long enough to be relied upon."""
    ready_s = served_since(replica)
    if not replica.ready or ready_s is None:
        return False
    return replica.life.revision != wish.revision or timer.due(ready_s + wish.spec.rollout.min_ready_seconds)


def begun_since(life: Life, sight: Sight) -> float | None:
    """When a life began, by the operator's own clock if it looked on."""
    return sight.since(moments.begun(life.index), life.epoch, life.begun_s)


def served_since(replica: Replica) -> float | None:
    """Since when it has served without a break, by the operator's own clock if it looked on."""
    return replica.life.ready_s if replica.ready_since_s is None else replica.ready_since_s


class _Settling:
    """One decision. Lives change as it goes on, so that each step counts what the ones before did."""

    def __init__(
        self, replicas: list[Replica], wish: Wish, sight: Sight, timer: Timer, over_quota: frozenset[int]
    ) -> None:
        self.wish: Final = wish
        self.sight: Final = sight
        self.timer: Final = timer
        self.over_quota: Final = over_quota
        self.by_index: Final = {replica.index: replica for replica in replicas}
        self.lives: Final = {replica.index: replica.life for replica in replicas}
        policy = wish.spec.failure_policy.node_lost
        self.vacant: Final = {r.index for r in replicas if is_vacant(r, sight, policy, timer)}
        self.available: Final = {r.index for r in replicas if is_available(r, wish, timer)}
        self.first_epoch = wish.first_epoch
        self.stopped: Final[dict[int, Stop]] = {}

    def done(self) -> Settled:
        """Everything that may be done at once."""
        rollout = self.wish.spec.rollout
        halted = bool(self._outdated()) and self._is_halted()
        if self.wish.spec.suspend:
            for index in self._standing():
                self._stop(index, Stop.SUSPENDED)
        else:
            self._renew_the_dead()
            self._scale_down()
            if not rollout.paused and not halted:
                self._replace()
            self._leave_nodes()
            self._fill()
        self._name_the_vacant()
        return Settled(self.lives, self.first_epoch, halted, len(self._outdated()), self.stopped)

    def _renew_the_dead(self) -> None:
        """A new spec lifts what is held; a life that was never whole can't be completed from another spec."""
        for index in self._standing():
            life = self.lives[index]
            if life.revision == self.wish.revision:
                continue
            torso = life.phase is ReplicaPhase.PENDING and bool(self.by_index[index].missing)
            if life.phase is ReplicaPhase.HELD or torso:
                self._stop(index, Stop.LIFTED)

    def _scale_down(self) -> None:
        """Not ready ones first, then those of an older spec, then the highest index."""
        excess = len(self._standing()) - self._room()
        for index in sorted(self._standing(), key=self._worth)[: max(0, excess)]:
            self._stop(index, Stop.SCALED_DOWN)

    def _replace(self) -> None:
        """End outdated replicas as far as enough others serve. One that doesn't serve costs nothing."""
        outdated = sorted(self._outdated(), key=self._worth)
        away, more = self.wish.spec.rollout.room(self.wish.replicas)
        for index in outdated:
            if not self._serves(index) or len(self._serving()) > self.wish.replicas - away:
                self._stop(index, Stop.REPLACED)
        if more and away == 0:
            self._make_room()

    def _make_room(self) -> None:
        """Give up a replica for which there is no room or volume, and with it the one whose place it was to take."""
        stuck = [index for index in self._standing() if self._is_stuck(index)]
        left = sorted(self._outdated(), key=self._worth)
        if not stuck or not left or len(self._serving()) < self.wish.replicas:
            return
        if len(self._standing()) > self.wish.replicas:
            self._stop(stuck[-1], Stop.NO_ROOM if self._is_out_of_room(stuck[-1]) else Stop.NO_VOLUME)
            self._stop(left[0], Stop.REPLACED)

    def _leave_nodes(self) -> None:
        """Move replicas off nodes that are being emptied, as many at once as the stage can spare.

        Those of one pod leave by its eviction, which their budget lets pass; of more, none is ever evicted.
        """
        room = self.wish.spec.disruption.room(self.wish.replicas)
        if room == 0 or self.wish.pods == 1 or _stays_on_draining_nodes(self.wish.spec):
            return
        leaving = [index for index in self._standing() if self._is_on_draining_node(index)]
        for index in sorted(leaving, key=self._worth):
            if not self._serves(index) or len(self._serving()) > self.wish.replicas - room:
                self._stop(index, Stop.NODE_DRAINED)

    def _fill(self) -> None:
        """Begin lives until there are as many as wanted, in places of old before new ones."""
        room = self._room()
        dead = sorted(index for index in self.vacant if self.lives[index].phase not in LIVE)
        for index in reversed(dead):
            # One that has pods left, on a node that is lost, is remembered until they are gone.
            if len(self.lives) > room and self._is_bare(index):
                self._forget(index)
        dead = [index for index in dead if index in self.lives]
        for index in dead[: max(0, room - len(self.lives) + len(dead))]:
            life = self.lives[index]
            fresh = life.revision != self.wish.revision or life.phase is ReplicaPhase.SUSPENDED
            if fresh or self._has_waited(life):
                self.lives[index] = begun(life, self.wish.revision, self.wish.pods, self.timer.now_s)
        while len(self.lives) < room:
            self._begin_anew()

    def _begin_anew(self) -> None:
        index = next(i for i in range(len(self.lives) + 1) if i not in self.lives)
        before = Life(index, self.first_epoch - 1, ReplicaPhase.PENDING, self.wish.revision, self.wish.pods)
        self.lives[index] = begun(before, self.wish.revision, self.wish.pods, self.timer.now_s)

    def _name_the_vacant(self) -> None:
        """What a replica is called that has no pods."""
        for index in self.vacant & self.lives.keys():
            life = self.lives[index]
            if life.phase in LIVE:
                continue
            if self.wish.spec.suspend and index < self.wish.spec.replicas:
                self.lives[index] = replace(life, phase=ReplicaPhase.SUSPENDED)
            elif self.wish.spec.suspend:
                if self._is_bare(index):
                    self._forget(index)
            elif not self._has_waited(life):
                self.lives[index] = replace(life, phase=ReplicaPhase.BACK_OFF)

    def _has_waited(self, life: Life) -> bool:
        """Whether the next life may begin."""
        history = life.history
        if (due_s := history.restart_at_s) is None:
            return True
        shortest_s, longest_s = waits_s(self.wish.spec.failure_policy.backoff, history)
        moment = moments.judged(life.index)
        judged_s = self.sight.since(moment, history.epoch, None)
        if judged_s is None:
            # Nobody saw it: a time that no back-off reaches is from a clock that was wrong.
            return due_s > self.timer.now_s + longest_s or self.timer.due(due_s)
        due_s = min(due_s, judged_s + longest_s)
        if self.sight.of_stage[moment].witnessed:
            due_s = max(due_s, judged_s + shortest_s)
        return self.timer.due(due_s)

    def _room(self) -> int:
        """How many replicas there may be at once, those that end included."""
        replicas, rollout = self.wish.replicas, self.wish.spec.rollout
        _, more = rollout.room(replicas)
        return replicas + min(more, len(self._outdated()))

    def _standing(self) -> list[int]:
        """Those that live, are held, or wait for their next life."""
        return sorted(
            index
            for index, life in self.lives.items()
            if life.phase in LIVE or life.phase is ReplicaPhase.HELD
        )

    def _outdated(self) -> list[int]:
        """Those that live by another spec and are to be replaced."""
        first = self.wish.spec.rollout.partition
        return [
            index
            for index in self._standing()
            if index >= first and self.lives[index].revision != self.wish.revision
        ]

    def _serves(self, index: int) -> bool:
        return index in self.available and self.lives[index].phase is ReplicaPhase.READY

    def _serving(self) -> list[int]:
        return [index for index in self.lives if self._serves(index)]

    def _worth(self, index: int) -> tuple[bool, bool, bool, int]:
        """What is given up first is worth least."""
        life = self.lives[index]
        return (
            self._serves(index),
            life.phase is ReplicaPhase.READY,
            life.revision == self.wish.revision,
            -index,
        )

    def _is_halted(self) -> bool:
        """Whether new replicas fail. Over once those that did have been ready for long."""
        policy = self.wish.spec.failure_policy
        failures = 0
        for index, life in self.lives.items():
            if life.revision != self.wish.revision:
                continue
            if life.phase is ReplicaPhase.HELD:
                return True
            if life.history.recent and not self._is_steady(index, policy.reset_after_seconds):
                failures += len(life.history.recent)
        return failures >= HALTING_FAILURES

    def _is_steady(self, index: int, seconds: int) -> bool:
        since_s = served_since(self.by_index[index])
        return (
            self.lives[index].ready_s is not None
            and since_s is not None
            and self.timer.due(since_s + seconds)
        )

    def _is_stuck(self, index: int) -> bool:
        """Whether a replica of the spec as it is now finds no room, or no volume."""
        if self.lives[index].revision != self.wish.revision:
            return False
        return self._is_out_of_room(index) or self._is_due(
            (pod.unmade_since_s for pod in self._pods(index)), NO_VOLUME_S
        )

    def _is_out_of_room(self, index: int) -> bool:
        since = [pod.unschedulable.since_s for pod in self._pods(index) if pod.unschedulable is not None]
        if index in self.over_quota:
            since.append(begun_since(self.lives[index], self.sight))
        return self._is_due(since, NO_ROOM_S)

    def _is_due(self, since: Iterable[float | None], after_s: int) -> bool:
        return any(at_s is not None and self.timer.due(at_s + after_s) for at_s in since)

    def _pods(self, index: int) -> tuple[PodView, ...]:
        return self.by_index[index].pods if index in self.by_index else ()

    def _is_on_draining_node(self, index: int) -> bool:
        if self.lives[index].phase not in WHOLE:
            return False
        nodes = (self.sight.node_of(pod) for pod in self.by_index[index].pods)
        return any(node is not None and node.draining for node in nodes)

    def _is_bare(self, index: int) -> bool:
        """Whether it has no pods at all, wherever they may be."""
        replica = self.by_index[index]
        return not replica.pods and not replica.older

    def _stop(self, index: int, why: Stop) -> None:
        self.stopped[index] = why
        self.lives[index] = stopped(self.lives[index])
        if self._is_bare(index):
            self.vacant.add(index)

    def _forget(self, index: int) -> None:
        self.first_epoch = max(self.first_epoch, self.lives[index].epoch + 1)
        del self.lives[index]
        self.vacant.discard(index)


def _stays_on_draining_nodes(spec: DiffusionStageSpec) -> bool:
    """Whether the user's own pod template lets pods start on such nodes: moving them would never end."""
    pod = spec.pod_template.get("spec")
    if not isinstance(pod, Mapping):
        return False
    said = pod.get("tolerations")  # the API server may yet find it unsound
    tolerations = said if isinstance(said, Sequence) else ()
    keys = [one.get("key") for one in tolerations if isinstance(one, Mapping)]
    return bool(pod.get("nodeName")) or any(key in (*DRAIN_TAINTS, None, "") for key in keys)
