"""The states of a request, the moves between them, and the record that the scheduler keeps of each live request.

Source: vLLM-Omni's request states, plus the moves of preemption and of a group's death (WAITING → FINISHED_ERROR).
Upholds: DIFF-RUNTIME-INV-001, one lifecycle per request, moved by one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stage_runtime.core.errors import InternalError
from stage_runtime.core.request import Request


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_COMPLETED = "finished_completed"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"


NEXT: Final[Mapping[Status, frozenset[Status]]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED_ABORTED, Status.FINISHED_ERROR}),
    Status.RUNNING: frozenset(
        {Status.PREEMPTED, Status.FINISHED_COMPLETED, Status.FINISHED_ABORTED, Status.FINISHED_ERROR}
    ),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED_ABORTED, Status.FINISHED_ERROR}),
    Status.FINISHED_COMPLETED: frozenset(),
    Status.FINISHED_ABORTED: frozenset(),
    Status.FINISHED_ERROR: frozenset(),
}
"""Every legal move. A state without a successor is terminal."""


@dataclass(slots=True, eq=False)
class Record:
    """What the scheduler knows of one live request. Written by the scheduler alone; holds no tensors."""

    request: Request
    arrival_s: float
    """When it was admitted, in seconds of the caller's clock."""
    status: Status = Status.WAITING
    first_scheduled_s: float | None = None
    """When it first entered a wave; None while it has never run, so that no runner knows it."""
    steps_done: int = 0
    materialising: bool = False
    """Computed but not delivered yet: still RUNNING and owned here, but it takes no slot."""
    computed_s: float = 0.0
    """Since when it materialises."""

    @property
    def cost_left(self) -> int:
        """Work still to do, in row-step-pixels."""
        return (self.request.steps - self.steps_done) * self.request.pixels


def advance(record: Record, to: Status) -> None:
    """Move `record` to `to`.

    Raises: InternalError for a move that `NEXT` doesn't list.
    """
    if to not in NEXT[record.status]:
        raise InternalError(
            f"request {record.request.request_id} can't go from {record.status.name} to {to.name}"
        )
    record.status = to
    if to is not Status.RUNNING:
        record.materialising = False
