"""What people are told of in events: what has changed between two plans, and what somebody can do about it.

Nothing is told for as long as a thing stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stage_api import names
from stage_api import status as st
from stage_api.replica_status import ReplicaPhase
from stage_api.status import Condition, ConditionStatus
from stage_operator.decide.conditions import (
    DEADLINE_EXCEEDED,
    POD_INVALID,
    ROLLING_OUT,
    ROLLOUT_HALTED,
    Finding,
    told,
)
from stage_operator.decide.replica import Life, Replica
from stage_operator.decide.rollout import Stop
from stage_operator.values import Emit

_WARN_WHEN_FALSE: Final = frozenset({st.ACCEPTED, st.SCHEDULED})
_WARN_WHEN_TRUE: Final = frozenset({st.DEGRADED})
_STUCK: Final = frozenset({ROLLOUT_HALTED, DEADLINE_EXCEEDED})
_TOLD_ALREADY: Final = frozenset({POD_INVALID, "ReplicaHeld", "ReplicaFailing", "ReplicaDisrupted"})
"""What the stage's acceptance, or its replicas, say in an event of their own."""
_ALL: Final = "every replica has the spec as it is now"


def of_replicas(
    before: Mapping[int, Life],
    replicas: Sequence[Replica],
    stopped: Mapping[int, Stop],
    stage: Mapping[str, Any],
    now_s: float,
) -> Iterator[Emit]:
    """What became of each replica."""
    for replica in replicas:
        was = before.get(replica.index)
        history = replica.life.history
        judged = None if was is None else was.history.epoch
        if history.last is not None and history.epoch != judged and history.epoch is not None:
            yield _ended(replica, stage, now_s)
    for index, why in sorted(stopped.items()):
        if why is Stop.NODE_DRAINED:
            yield Emit("Normal", "ReplicaMoved", f"replica {index} moves, since {why}", stage)
        elif why in (Stop.NO_ROOM, Stop.NO_VOLUME):
            text = f"replica {index} is given up, since {why}; another one is replaced in its place"
            yield Emit("Warning", "NoRoomToSurge", text, stage)


def of_conditions(
    before: Sequence[Condition], found: Mapping[str, Finding], stage: Mapping[str, Any]
) -> Iterator[Emit]:
    """Conditions that have become bad, or have another reason to be."""
    old = {condition.type: condition for condition in before}
    for finding in found.values():
        was = old.get(finding.type)
        if was is not None and was.reason == finding.reason:
            continue
        bad = (finding.type in _WARN_WHEN_FALSE and finding.holds is False) or (
            finding.type in _WARN_WHEN_TRUE and finding.holds and finding.reason not in _TOLD_ALREADY
        )
        if bad:
            yield Emit("Warning", finding.reason, finding.message, stage)
        elif finding.type == st.PROGRESSING:
            yield from _progress(was, finding, stage)
        elif finding.type == st.SUSPENDED and was is not None and finding.holds != _held(was):
            resumed = "spec.suspend is false again; every replica begins anew"
            about = ("Suspended", finding.message) if finding.holds else ("Resumed", resumed)
            yield Emit("Normal", *about, stage)


def _progress(was: Condition | None, finding: Finding, stage: Mapping[str, Any]) -> Iterator[Emit]:
    if finding.reason in _STUCK:
        yield Emit("Warning", finding.reason, finding.message, stage)
    elif finding.reason == ROLLING_OUT:
        yield Emit("Normal", "RolloutStarted", finding.message, stage)
    elif was is not None and was.reason == ROLLING_OUT and finding.reason == "Complete":
        yield Emit("Normal", "RolloutFinished", finding.message or _ALL, stage)


def _held(condition: Condition) -> bool:
    return condition.status is ConditionStatus.TRUE


def _ended(replica: Replica, stage: Mapping[str, Any], now_s: float) -> Emit:
    history = replica.life.history
    if replica.phase is ReplicaPhase.HELD:
        ways = f"change the spec, or set the annotation {names.ANNOTATION_RESTART} to another value"
        return Emit("Warning", "ReplicaHeld", f"{told(replica)}. To go on, {ways}", stage)
    wait_s = max(0.0, (history.restart_at_s or now_s) - now_s)
    text = f"{told(replica)}; the next life may begin in {wait_s:.0f} s"
    last = history.last
    if last is not None and last.reason is not None and last.reason.is_disruption:
        return Emit("Normal", "ReplicaDisrupted", text, stage)
    return Emit("Warning", "ReplicaFailed", text, stage)
