"""What the operator remembers and reports of one replica.

The history is the only memory of failures that there is: a program that starts anew decides from it alone. The rest
is for people, and is left away first where a stage has so many replicas that its status would not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from stage_api import names
from stage_api.base import Contract
from stage_api.failure import History

MAX_NODES: Final = 8
MAX_START: Final = 256

Count = Annotated[int, Field(ge=0)]
Index = Annotated[int, Field(ge=0, le=names.MAX_REPLICA_STATUSES - 1)]
Epoch = Annotated[int, Field(ge=0, le=2 * names.MAX_EPOCH)]
Name = Annotated[str, Field(max_length=63)]
NodeName = Annotated[str, Field(max_length=253)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class ReplicaPhase(StrEnum):
    """Where a replica is in its life."""

    PENDING = "Pending"
    SCHEDULING = "Scheduling"
    STARTING = "Starting"
    READY = "Ready"
    NOT_READY = "NotReady"  # having been ready in this life
    DRAINING = "Draining"  # to an end that somebody asked for
    TERMINATING = "Terminating"  # after an end that nobody asked for
    BACK_OFF = "BackOff"
    HELD = "Held"
    SUSPENDED = "Suspended"


class ReplicaStatus(Contract):
    """One replica."""

    # Kept by programs that may be older than the one that wrote it.
    model_config = ConfigDict(extra="ignore")

    index: Index = Field(description="Index of the replica.")
    epoch: Epoch | None = Field(default=None, description="Its life now, or its last.")
    phase: Name | None = Field(default=None, description="Where it is in its life.")
    revision: Name | None = Field(default=None, description="Revision of the spec that its pods have.")
    ready: Name | None = Field(default=None, description="Ready of all its pods, such as 7/8.")
    nodes: Annotated[tuple[NodeName, ...], Field(strict=False, max_length=MAX_NODES)] = Field(
        default=(), description="Nodes of its pods, the first few."
    )
    started_at: Time | None = Field(default=None, description="When its pods were made.")
    ready_at: Time | None = Field(default=None, description="Since when it has been ready without a break.")
    start: Annotated[str, Field(max_length=MAX_START)] | None = Field(
        default=None,
        description="What its start is doing, as its first pod says, or the cluster before it can.",
    )
    history: History | None = Field(
        default=None, description="What is remembered of its ends; nothing, if it had none."
    )


Replicas = tuple[ReplicaStatus, ...]


def spare(replicas: Replicas, fits: Callable[[Replicas], bool], *, forget: bool = False) -> Replicas:
    """The replicas with as little left away as it takes to fit: nodes, then messages.

    `forget`: then also the bad nodes and the counted restarts, the oldest first; a budget of many restarts loosens
    rather than a status that can't be stored loses them all.
    """
    for less in (_as_they_are, _without_nodes, _without_messages):
        replicas = less(replicas)
        if fits(replicas):
            return replicas
    for field in ("avoid_nodes", "recent") if forget else ():
        kept = max((len(getattr(one.history, field, ())) for one in replicas), default=0)
        while kept > 0 and not fits(replicas):
            kept //= 2
            replicas = tuple(_with_latest(replica, field, kept) for replica in replicas)
    return replicas


def _as_they_are(replicas: Replicas) -> Replicas:
    return replicas


def _without_nodes(replicas: Replicas) -> Replicas:
    return tuple(replica.model_copy(update={"nodes": (), "start": None}) for replica in replicas)


def _without_messages(replicas: Replicas) -> Replicas:
    return tuple(_with_last(replica, message="", node=None) for replica in replicas)


def _with_last(replica: ReplicaStatus, **fields: object) -> ReplicaStatus:
    history = replica.history
    if history is None or history.last is None:
        return replica
    last = history.last.model_copy(update=fields)
    return replica.model_copy(update={"history": history.model_copy(update={"last": last})})


def _with_latest(replica: ReplicaStatus, field: str, kept: int) -> ReplicaStatus:
    history = replica.history
    if history is None:
        return replica
    known = getattr(history, field)
    latest = history.model_copy(update={field: known[max(0, len(known) - kept) :]})
    return replica.model_copy(update={"history": latest})
