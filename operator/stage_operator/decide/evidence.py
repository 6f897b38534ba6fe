"""How a life of a replica ended: of all that its pods show, what came first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from stage_api.failure import MAX_MESSAGE_CHARS, Evidence, Reason
from stage_api.outcome import ExitCode
from stage_operator.decide.views import Ended, PodView, Sight

_ORDER: Final = (
    ExitCode.CONFIG,
    ExitCode.MODEL,
    ExitCode.ACCELERATOR_FAULT,
    ExitCode.OUT_OF_MEMORY,
    ExitCode.HANG,
)
"""Causes. Kubernetes tells times in whole seconds; of two ends in one second, the one further up counts."""
_CONSEQUENCES: Final = (ExitCode.RENDEZVOUS_TIMEOUT, ExitCode.RANK_DIED, ExitCode.DRAINED)
"""What ranks end with because another one did; they come last."""


@dataclass(frozen=True, slots=True)
class End:
    """One sign that a life is over."""

    at_s: float
    evidence: Evidence

    @property
    def order(self) -> tuple[float, int]:
        """Earlier ones first, and causes before consequences."""
        return self.at_s, _place(self.evidence)


def first_end(
    epoch: int, pods: Sequence[PodView], missing: Sequence[str], sight: Sight, *, grace_s: float, now_s: float
) -> End | None:
    """What ended a life first; None if nothing did.

    `pods`: those of that life. `missing`: names of those that were there and are no more.
    """
    ends = [end for pod in pods if (end := _end_of(epoch, pod, sight, grace_s, now_s)) is not None]
    if (late := next((pod for pod in pods if pod.started_s is None and pod.ended is None), None)) is not None:
        ends = [_excused(end, late) for end in ends]
    if missing:
        # When it went, nobody knows. Others end because of it, so it stands before what may be a consequence.
        at_s = min((end.at_s for end in ends), default=now_s)
        ends.append(End(at_s, _disruption(epoch, Reason.DELETED, None, f"pod {missing[0]} is gone")))
    return min(ends, key=lambda end: end.order, default=None)


def _end_of(epoch: int, pod: PodView, sight: Sight, grace_s: float, now_s: float) -> End | None:
    return min(_signs(epoch, pod, sight, grace_s, now_s), key=lambda end: end.order, default=None)


def _signs(epoch: int, pod: PodView, sight: Sight, grace_s: float, now_s: float) -> Iterator[End]:
    asked_s = inf if pod.delete_asked_s is None else pod.delete_asked_s
    node = sight.node_of(pod)
    if pod.ended is not None:
        at_s = now_s if pod.ended.at_s is None else pod.ended.at_s
        # One that ends because it was asked to says nothing by it; times are in whole seconds.
        if at_s <= asked_s and not (at_s == asked_s and pod.ended.exit_code == ExitCode.DRAINED):
            yield End(at_s, _exit(epoch, pod, pod.ended))
    elif node is not None and (lost_s := node.lost_since_s(grace_s)) is not None and lost_s <= now_s:
        since_s = lost_s if node.not_ready_since_s is None else node.not_ready_since_s
        text = f"node {node.name} is gone" if node.gone else f"node {node.name} no longer answers"
        yield End(since_s or now_s, _disruption(epoch, Reason.NODE_LOST, pod.node, text))
    if pod.delete_asked_s is not None:
        drained = node is not None and node.draining
        reason = pod.disruption or (Reason.NODE_DRAINED if drained else Reason.DELETED)
        if reason is Reason.EVICTED and drained:
            reason = Reason.NODE_DRAINED
        yield End(pod.delete_asked_s, _disruption(epoch, reason, pod.node, f"pod {pod.name} was asked to go"))


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


def _place(evidence: Evidence) -> int:
    code = ExitCode.of(evidence.exit_code) if evidence.exit_code is not None else None
    if code in _ORDER:
        return _ORDER.index(code)
    if evidence.reason is not None and evidence.reason.is_disruption:
        return len(_ORDER) + 1
    if code in _CONSEQUENCES:
        return len(_ORDER) + 2 + _CONSEQUENCES.index(code)
    return len(_ORDER)
