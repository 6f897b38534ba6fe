"""How a life of a replica ended: of all that its pods show, what came first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stage_api.failure import MAX_MESSAGE_CHARS, Evidence, Reason
from stage_api.outcome import ExitCode
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import Ended, NodeView, PodView, Sight

_CAUSES: Final = (
    ExitCode.CONFIG,
    ExitCode.MODEL,
    ExitCode.ACCELERATOR_FAULT,
    ExitCode.OUT_OF_MEMORY,
)
"""What nothing outside a pod makes it end with."""
_CONSEQUENCES: Final = (
    ExitCode.HANG,
    ExitCode.RENDEZVOUS_TIMEOUT,
    ExitCode.RANK_DIED,
    ExitCode.DRAINED,
)
"""What ranks may end with because another one did, or its node; they come last."""
CAUSE_S: Final = 60
"""How long the cause of such an end is waited for, if a pod of the replica has said nothing yet: Kubernetes takes up to
50 s to call a node not ready, by default, and the other pods end 12 s after it went."""


@dataclass(frozen=True, slots=True)
class End:
    """One sign that a life is over."""

    at_s: float
    evidence: Evidence

    @property
    def order(self) -> tuple[int, float]:
        """Causes before consequences, and of like ones what was seen first.

        All ends on the table are of one death, since a life is judged as soon as its cause is known; and who sees
        the ends of several nodes hears of them in any order.
        """
        return _place(self.evidence), self.at_s

    @property
    def is_consequence(self) -> bool:
        """Whether something else may have made the ranks end so."""
        return self.evidence.reason is None and _code(self.evidence) in _CONSEQUENCES


def first_end(
    epoch: int,
    pods: Sequence[PodView],
    missing: Sequence[str],
    sight: Sight,
    *,
    grace_s: float,
    timer: Timer,
) -> End | None:
    """What ended a life first; None if nothing did.

    `pods`: those of that life. `missing`: names of those that were there and are no more.
    """
    now_s = timer.now_s
    ends = [end for pod in pods if (end := _end_of(epoch, pod, sight, grace_s, timer)) is not None]
    if (late := next((pod for pod in pods if pod.started_s is None and pod.ended is None), None)) is not None:
        ends = [_excused(end, late) for end in ends]
    if missing:
        # When it went, nobody knows. Others end because of it, so it stands before what may be a consequence.
        at_s = min((end.at_s for end in ends), default=now_s)
        ends.append(End(at_s, _disruption(epoch, Reason.DELETED, None, f"pod {missing[0]} is gone")))
    if any(end.is_consequence for end in ends):
        ends += _silent(epoch, pods, sight, now_s)
    return min(ends, key=lambda end: end.order, default=None)


def awaits_cause(end: End, pods: Sequence[PodView], timer: Timer) -> bool:
    """Whether a life is over and its cause may still come to light: one of its pods has said nothing yet.

    That one ends within seconds, or its node is called not ready, or neither in time.
    """
    silent = any(pod.started_s is not None and pod.ended is None for pod in pods)
    return end.is_consequence and silent and not timer.due(end.at_s + CAUSE_S)


def _end_of(epoch: int, pod: PodView, sight: Sight, grace_s: float, timer: Timer) -> End | None:
    return min(_signs(epoch, pod, sight, grace_s, timer), key=lambda end: end.order, default=None)


def _signs(epoch: int, pod: PodView, sight: Sight, grace_s: float, timer: Timer) -> Iterator[End]:
    node, now_s = sight.node_of(pod), timer.now_s
    lost_s = None if node is None else node.lost_since_s(grace_s)
    if pod.ended is not None and pod.ended.unasked:
        yield End(now_s if pod.ended.at_s is None else pod.ended.at_s, _exit(epoch, pod, pod.ended))
        return  # what was asked of it later is no matter
    if pod.ended is None and node is not None and lost_s is not None and timer.due(lost_s):
        yield _node_lost(epoch, node, pod, now_s)
    if pod.delete_asked_s is not None:
        drained = node is not None and node.draining
        reason = pod.disruption or (Reason.NODE_DRAINED if drained else Reason.DELETED)
        if reason is Reason.EVICTED and drained:
            reason = Reason.NODE_DRAINED
        yield End(pod.delete_asked_s, _disruption(epoch, reason, pod.node, f"pod {pod.name} was asked to go"))


def _silent(epoch: int, pods: Sequence[PodView], sight: Sight, now_s: float) -> Iterator[End]:
    """Nodes that don't answer, whose pods have said nothing while others ended: they need not be silent for long."""
    for pod in pods:
        node = sight.node_of(pod)
        if pod.ended is None and node is not None and (node.gone or node.not_ready_since_s is not None):
            yield _node_lost(epoch, node, pod, now_s)


def _node_lost(epoch: int, node: NodeView, pod: PodView, now_s: float) -> End:
    text = f"node {node.name} is gone" if node.gone else f"node {node.name} no longer answers"
    at_s = now_s if node.not_ready_since_s is None else node.not_ready_since_s
    return End(at_s, _disruption(epoch, Reason.NODE_LOST, pod.node, text))


def _excused(end: End, late: PodView) -> End:
    """The same end, which is no fault of its own if it waited for a pod that has not even started."""
    if end.evidence.exit_code != ExitCode.RENDEZVOUS_TIMEOUT or end.evidence.reason is not None:
        return end
    text = f"pod {late.name} had not started yet"
    return End(end.at_s, end.evidence.model_copy(update={"reason": Reason.INCOMPLETE, "message": text}))


def start_timeout(epoch: int, seconds: int, what: str) -> Evidence:
    """The evidence of a life that did not come up in time."""
    return Evidence(epoch=epoch, reason=Reason.START_TIMEOUT, message=f"{what} after {seconds} s")


def _exit(epoch: int, pod: PodView, ended: Ended) -> Evidence:
    rank = None if ended.report is None else ended.report.rank
    return Evidence(
        epoch=epoch,
        exit_code=ended.exit_code,
        reason=ended.reason,
        rank=None if rank is None or rank < 0 else rank,
        node=pod.node,
        message=_cut(ended.message) if ended.report is not None else _tail(ended.message),
    )


def _disruption(epoch: int, reason: Reason, node: str | None, message: str) -> Evidence:
    return Evidence(epoch=epoch, reason=reason, node=node, message=_cut(message))


def _cut(text: str) -> str:
    """Of a long message the start, where it says what it is about."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _tail(text: str) -> str:
    """Of the last lines of a log the end."""
    return text if len(text) <= MAX_MESSAGE_CHARS else "…" + text[1 - MAX_MESSAGE_CHARS :]


def _code(evidence: Evidence) -> ExitCode | None:
    return None if evidence.exit_code is None else ExitCode.of(evidence.exit_code)


def _place(evidence: Evidence) -> int:
    """Whose fault it is, the likeliest first: a rank's own, somebody's whose code says nothing, outside, another's."""
    code = _code(evidence)
    if code in _CAUSES:
        return _CAUSES.index(code)
    if evidence.reason is not None and evidence.reason.is_disruption:
        return len(_CAUSES) + 1
    if code in _CONSEQUENCES and evidence.reason is None:
        return len(_CAUSES) + 2 + _CONSEQUENCES.index(code)
    return len(_CAUSES)
