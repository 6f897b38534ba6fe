"""What follows when a replica ends that nobody asked to: another life after a wait, or none.

Holds the policy as a user sets it, and the decision as a function of policy, history, evidence and time. The
operator and a local run both decide here. All times are seconds on one clock of the caller's, which must outlive him
where he keeps the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from stage_api.base import Contract, Law
from stage_api.errors import Fault
from stage_api.outcome import ExitCode, TerminationReport

MAX_RESTARTS: Final = 100
MAX_MESSAGE_CHARS: Final = 256
MAX_BAD_NODES: Final = 8
"""So many nodes a replica keeps away from; past them it forgets the one that failed longest ago."""
_MAX_DOUBLINGS: Final = 20  # past it every wait is the longest


def _longest_is_longest(initial_seconds: int, max_seconds: int) -> Fault | None:
    if initial_seconds <= max_seconds:
        return None
    return Fault("initialSeconds", f"at most maxSeconds {max_seconds}", str(initial_seconds))


class BackoffSpec(Contract):
    """How long a replica that failed waits for its next life. Each wait is twice the one before.

    One that was disturbed from outside waits the first wait, however often that happens.
    """

    initial_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(default=10, description="The first wait.")
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(default=300, description="The longest wait.")
    jitter_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=20, description="How far chance moves a wait to either side, so that replicas come apart."
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("initial_seconds", "max_seconds"),
            "self.initialSeconds <= self.maxSeconds",
            "the first wait must be at most maxSeconds",
            _longest_is_longest,
            "initialSeconds",
        ),
    )


class NodeLostSpec(Contract):
    """What follows when a node no longer answers."""

    grace_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=45,
        description="How long a node may be silent before its replicas count as lost and begin another life.",
    )
    force_delete_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=120,
        description="How long the pods of a lost replica are waited for before they are deleted without their node; "
        "at once, if the node is gone or marked as out of service.",
    )


class FailurePolicySpec(Contract):
    """What follows when a replica ends by itself.

    Built in: a wrong spec or model (exit codes 64 and 65) holds the replica at once; a bad device (72) avoids its node;
    what befell the node or was done on purpose is not counted; anything else is a failure.
    """

    max_restarts: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = Field(
        default=6, description="Restarts within windowSeconds; a failure past them holds the replica."
    )
    window_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=3600, description="Length of the sliding window in which restarts are counted."
    )
    backoff: BackoffSpec = Field(
        default=BackoffSpec(), description="How long a replica that ended waits for its next life."
    )
    reset_after_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=600,
        description="A replica that was ready for so long starts again without a wait, "
        "and the waits after it begin with the first again.",
    )
    node_lost: NodeLostSpec = Field(
        default=NodeLostSpec(), description="What follows when a node no longer answers."
    )


class Reason(StrEnum):
    """What the keeper of a replica knows of its end beside the exit code."""

    OOM_KILLED = "OOMKilled"
    START_TIMEOUT = "StartTimeout"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    NODE_DRAINED = "NodeDrained"
    DELETED = "Deleted"
    INCOMPLETE = "Incomplete"  # its ranks waited in vain for a pod that had no room yet, or no image

    @property
    def is_disruption(self) -> bool:
        """Whether it says something about the replica's surroundings only, and so is not counted."""
        return self in _DISRUPTIONS


_DISRUPTIONS: Final = frozenset(
    {
        Reason.EVICTED,
        Reason.PREEMPTED,
        Reason.NODE_LOST,
        Reason.NODE_DRAINED,
        Reason.DELETED,
        Reason.INCOMPLETE,
    }
)


class HoldReason(StrEnum):
    """Why a replica gets no other life until somebody changes something."""

    CONFIG_INVALID = "ConfigInvalid"
    MODEL_INVALID = "ModelInvalid"
    BUDGET_EXCEEDED = "RestartBudgetExceeded"

    @property
    def meaning(self) -> str:
        """The reason in words."""
        return _MEANING[self]


_MEANING: Final = {
    HoldReason.CONFIG_INVALID: "another try with the same spec would end the same way",
    HoldReason.MODEL_INVALID: "another try with the same model would end the same way",
    HoldReason.BUDGET_EXCEEDED: "it has been restarted as often as failurePolicy.maxRestarts allows",
}

_HOPELESS: Final = {
    int(ExitCode.CONFIG): HoldReason.CONFIG_INVALID,
    int(ExitCode.MODEL): HoldReason.MODEL_INVALID,
}


NodeName = Annotated[str, Field(max_length=253)]


class _Kept(Contract):
    # Kept by programs that may be older than the one that wrote it.
    model_config = ConfigDict(extra="ignore")


class Evidence(_Kept):
    """How one life of a replica ended."""

    epoch: Annotated[int, Field(ge=0)] = Field(description="The life that ended.")
    exit_code: int | None = Field(
        default=None, description="Exit status of the pod that ended first; 128 and its number for a signal."
    )
    reason: Annotated[Reason, Field(strict=False)] | None = Field(
        default=None, description="What is known of the end beside the exit code."
    )
    rank: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The rank at fault, if it was one."
    )
    node: NodeName | None = Field(default=None, description="Node of the pod that ended first.")
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = Field("", description="Why, for people.")

    @classmethod
    def of_exit(
        cls,
        epoch: int,
        exit_code: int,
        report: TerminationReport | None = None,
        *,
        reason: Reason | None = None,
        node: str | None = None,
    ) -> Evidence:
        """The evidence in an exit status and the last words that came with it."""
        text = "" if report is None else report.message
        return cls(
            epoch=epoch,
            exit_code=exit_code,
            reason=reason,
            rank=None if report is None else report.rank,
            node=node,
            message=text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…",
        )


class History(_Kept):
    """What must be remembered of a replica's lives to decide about the next one. Change it only by what is below."""

    epoch: Annotated[int, Field(ge=0)] | None = Field(default=None, description="The last life judged.")
    consecutive: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Failures in a row of which none came after a long time of being ready."
    )
    recent: Annotated[tuple[float, ...], Field(strict=False, max_length=MAX_RESTARTS)] = Field(
        default=(), description="Times of the counted restarts that the window may still hold."
    )
    restarts: Annotated[int, Field(ge=0)] = Field(default=0, description="All restarts so far.")
    disruptions: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Ends so far that were not counted."
    )
    last: Evidence | None = Field(default=None, description="How the last life judged ended.")
    restart_at_s: float | None = Field(default=None, description="When the next life may begin.")
    avoid_node: NodeName | None = Field(
        default=None,
        description="As avoidNodes, from a version that knew one node only. Read, never written.",
    )
    avoid_nodes: Annotated[tuple[NodeName, ...], Field(strict=False, max_length=MAX_BAD_NODES)] = Field(
        default=(), description="Nodes whose device failed, the latest last: lives go there if nowhere else."
    )
    held: Annotated[HoldReason, Field(strict=False)] | None = Field(
        default=None, description="Why there is no next life."
    )

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes where the next life had better not be, the latest to fail last."""
        if self.avoid_node is None or self.avoid_node in self.avoid_nodes:
            return self.avoid_nodes
        return (self.avoid_node, *self.avoid_nodes)[-MAX_BAD_NODES:]


@dataclass(frozen=True, slots=True)
class Restart:
    """The next life may begin at `at_s`, and not on `bad_nodes` if there are others."""

    at_s: float
    bad_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """There is no next life until `lift`."""

    reason: HoldReason


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and what to remember. To be kept before it is acted upon, or a crash between makes it forgotten."""

    history: History
    action: Restart | Hold


def decide(
    policy: FailurePolicySpec,
    history: History,
    evidence: Evidence,
    *,
    now_s: float,
    ready_for_s: float | None,
    jitter: float,
) -> Decision:
    """What follows from the end of a life that nobody asked to end.

    `ready_for_s`: how long it had been ready without a break; None if it never was. `jitter`: a number in [-1, 1],
    drawn by the caller. A life that was judged before is not counted again: the answer is the same as then.

    What is not counted leaves the failures in a row as they are, and waits the first wait.
    """
    if history.held is not None or (history.epoch is not None and evidence.epoch <= history.epoch):
        return Decision(history, _standing(history, now_s))
    seen = {
        "epoch": evidence.epoch,
        "last": evidence,
        "restart_at_s": None,
        "avoid_node": None,
        "avoid_nodes": _bad_nodes(history, evidence),
    }
    if (hopeless := _HOPELESS.get(_code(evidence))) is not None:
        return _hold(history, seen, hopeless)
    counted = evidence.reason is None or not evidence.reason.is_disruption
    # Each of them is over: a time to come is of a clock that was ahead.
    recent = tuple(min(at_s, now_s) for at_s in history.recent if at_s > now_s - policy.window_seconds)
    if counted and len(recent) >= policy.max_restarts:
        return _hold(history, seen, HoldReason.BUDGET_EXCEEDED)
    was_well = ready_for_s is not None and ready_for_s >= policy.reset_after_seconds
    consecutive = 0 if was_well else history.consecutive + counted
    at_s = now_s + wait_s(policy.backoff, 0 if was_well else consecutive if counted else 1, jitter)
    seen |= {
        "consecutive": consecutive,
        "recent": (*recent, at_s) if counted else recent,
        "restarts": history.restarts + 1,
        "disruptions": history.disruptions + (not counted),
        "restart_at_s": at_s,
    }
    after = history.model_copy(update=seen)
    return Decision(after, _standing(after, now_s))


def wait_s(backoff: BackoffSpec, consecutive: int, jitter: float) -> float:
    """Seconds before the next life after so many ends in a row; the end of one that was well is none of them."""
    if consecutive == 0:
        return 0.0
    doubled = backoff.initial_seconds << min(consecutive - 1, _MAX_DOUBLINGS)
    return min(doubled, backoff.max_seconds) * (1 + jitter * backoff.jitter_percent / 100)


def waits_s(backoff: BackoffSpec, history: History) -> tuple[float, float]:
    """The shortest and the longest wait that the policy can have given before the next life.

    For whoever can't trust the clock that `restart_at_s` is of, and knows when the history became so.
    """
    if history.last is not None and history.last.reason is not None and history.last.reason.is_disruption:
        return 0.0, wait_s(backoff, 1, 1.0)  # none, if the replica had been well
    return wait_s(backoff, history.consecutive, -1.0), wait_s(backoff, history.consecutive, 1.0)


def lift(history: History) -> History:
    """The history after somebody changed the spec or asked for a restart: nothing is held, nothing counts any more.

    The next life may begin at once. A node whose device failed is not mended by it.
    """
    return history.model_copy(update={"consecutive": 0, "recent": (), "restart_at_s": None, "held": None})


def _bad_nodes(history: History, evidence: Evidence) -> tuple[str, ...]:
    """The nodes to keep away from, with the one whose device failed now as the last."""
    if _code(evidence) != ExitCode.ACCELERATOR_FAULT or evidence.node is None:
        return history.bad_nodes
    return (*(node for node in history.bad_nodes if node != evidence.node), evidence.node)[-MAX_BAD_NODES:]


def _standing(history: History, now_s: float) -> Restart | Hold:
    """What was decided last."""
    if history.held is not None:
        return Hold(history.held)
    return Restart(now_s if history.restart_at_s is None else history.restart_at_s, history.bad_nodes)


def _hold(history: History, seen: dict[str, object], reason: HoldReason) -> Decision:
    return Decision(history.model_copy(update={**seen, "held": reason}), Hold(reason))


def _code(evidence: Evidence) -> int:
    return -1 if evidence.exit_code is None else evidence.exit_code
