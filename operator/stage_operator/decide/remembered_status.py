"""What the operator remembers of a stage's replicas: read from the status, and from pods that it doesn't know of.

The status is the only memory. Where pods say more than it does, the operator ended between making them and writing
so; where there is none, the stage's status was lost, and its pods are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

from stage_api import names
from stage_api.base import Contract
from stage_api.decode import decode
from stage_api.errors import SpecError
from stage_api.failure import History, lift
from stage_api.replica_status import MAX_NODES, ReplicaPhase, ReplicaStatus
from stage_api.status import DiffusionStageStatus
from stage_operator.decide.replica import LIVE, Life, Replica, grouped
from stage_operator.decide.views import PodView, unix_s
from stage_operator.values import Gone

_BLANK: Final = History()


@dataclass(frozen=True, slots=True)
class Memory:
    """What was written down last."""

    status: DiffusionStageStatus
    lives: Mapping[int, Life]
    """By index."""
    first_epoch: int
    """Where the lives of a replica that is new begin to be counted."""


def recall(raw: Mapping[str, Any], pods: Sequence[PodView], gone: Mapping[int, Gone]) -> Memory:
    """The memory in a stage's status, and in the pods that it does not speak of, there or gone."""
    status = read(raw)
    first_epoch = status.first_epoch or 0
    if first_epoch > names.MAX_EPOCH:
        first_epoch = 0
    lives = {one.index: _life(one, one.epoch) for one in status.replica_statuses if _is_believed(one.epoch)}
    for index, its in grouped(pods).items():
        last = its[-1]
        known = lives.get(index)
        if known is None or last.epoch > known.epoch:
            lives[index] = _found(index, last.epoch, last.revision, last.ordinal + 1, known)
    for index, went in gone.items():
        if (known := lives.get(index)) is None:
            first_epoch = max(first_epoch, went.epoch + 1)
        elif went.epoch > known.epoch:
            lives[index] = _found(index, went.epoch, went.revision, max(went.ordinals) + 1, known)
    return Memory(status, lives, first_epoch)


def read(raw: Mapping[str, Any]) -> DiffusionStageStatus:
    """The status in a stage's object; what can't be read of it is as if it had never been written."""
    status = raw.get("status")
    if not isinstance(status, Mapping):
        return DiffusionStageStatus()
    try:
        return decode(DiffusionStageStatus, status)
    except SpecError as error:
        spoilt = {fault.path.split(".")[0].split("[")[0] for fault in error.faults}
    left = {name: value for name, value in status.items() if name not in spoilt}
    if "replicaStatuses" in spoilt and isinstance(status["replicaStatuses"], Sequence):
        sound = [one for one in status["replicaStatuses"] if _is_sound(ReplicaStatus, one)]
        left["replicaStatuses"] = sound[: names.MAX_REPLICA_STATUSES]
    return (
        decode(DiffusionStageStatus, left)
        if _is_sound(DiffusionStageStatus, left)
        else DiffusionStageStatus()
    )


def _is_believed(epoch: int | None) -> TypeGuard[int]:
    return epoch is not None and epoch <= names.MAX_EPOCH


def _is_sound(model: type[Contract], value: object) -> bool:
    try:
        decode(model, value)
    except SpecError:
        return False
    return True


def written(replica: Replica, start: str | None = None) -> ReplicaStatus:
    """What is to be remembered of a replica, and what people read. `start`: what its start is doing."""
    life = replica.life
    ready = sum(pod.ready_since_s is not None and pod.ended is None for pod in replica.pods)
    nodes = dict.fromkeys(pod.node for pod in replica.pods if pod.node is not None)
    return ReplicaStatus(
        index=life.index,
        epoch=life.epoch,
        phase=life.phase,
        revision=life.revision,
        ready=f"{ready}/{life.pods}",
        nodes=tuple(nodes)[:MAX_NODES],
        started_at=time_text(life.begun_s),
        ready_at=time_text(life.ready_s),
        start=start,
        history=None if life.history == _BLANK else life.history,
    )


def time_text(at_s: float | None) -> str | None:
    """A time as Kubernetes writes it, in whole seconds."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _life(one: ReplicaStatus, epoch: int) -> Life:
    try:
        phase = ReplicaPhase(one.phase or "")
    except ValueError:
        phase = ReplicaPhase.PENDING  # a newer program's word: its pods say where it is
    _, _, pods = (one.ready or "").partition("/")
    return Life(
        index=one.index,
        epoch=epoch,
        phase=phase,
        revision=one.revision or "",
        pods=min(int(pods), names.MAX_ORDINAL + 1) if pods.isdecimal() else 1,
        history=_history(one.history, epoch - (one.phase in LIVE)),
        begun_s=unix_s(one.started_at),
        ready_s=unix_s(one.ready_at),
    )


def _history(history: History | None, last: int) -> History:
    """What is remembered; no life past the `last` has been judged, whatever somebody wrote: it lives, or never did."""
    if history is None:
        return _BLANK
    if history.epoch is None or history.epoch <= last:
        return history
    return history.model_copy(update={"epoch": last if last >= 0 else None})


def _found(index: int, epoch: int, revision: str, pods: int, known: Life | None) -> Life:
    """The life that pods are of, though nobody wrote of it."""
    life = Life(index, epoch, ReplicaPhase.PENDING, revision, pods)
    if known is None:
        return life
    asked_for = known.phase is ReplicaPhase.SUSPENDED or known.history.held is not None
    fresh = asked_for or known.revision != revision
    return replace(life, history=lift(known.history) if fresh else known.history)
