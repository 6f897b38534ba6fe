"""What the operator reports about a stage: the `status` of a DiffusionStage.

Conditions carry the meaning; `phase` and `ready` are for people who read a table. A status
with unknown fields is read without complaint, so that an older program can read a newer one's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field

from stage_api import names
from stage_api.base import Contract
from stage_api.pod_facts import PodFacts
from stage_api.replica_status import Count, Epoch, Name, Replicas, spare
from stage_api.topology import ORDER, Topology

ACCEPTED: Final = "Accepted"
READY: Final = "Ready"
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
SCHEDULED: Final = "Scheduled"
MODEL_READY: Final = "ModelReady"
FACTS_KNOWN: Final = "FactsKnown"

CONDITIONS: Final = {
    ACCEPTED: "The spec is valid, and this version and this cluster can carry it out.",
    READY: "Every replica serves, with the spec as it is now, or as `rollout.partition` keeps it.",
    AVAILABLE: "At least one replica serves.",
    PROGRESSING: "Replicas are being started, replaced or removed.",
    DEGRADED: "Something keeps replicas from serving; the worst of it is told.",
    FAILED: "A replica is held: it gets no other life until somebody changes something.",
    SUSPENDED: "The spec wants no pods.",
    SCHEDULED: "Every pod has found a node.",
    MODEL_READY: "The model's files are where the pods look for them.",
    FACTS_KNOWN: "A ready replica has told what its model can do. It says nothing about whether the stage serves.",
}
"""What each condition means when it is True. Degraded and Failed are the only ones that are bad then."""

MAX_BYTES: Final = 1_000_000  # of a status as JSON; etcd takes 1.5 MiB for the whole object
DETAILED_BYTES: Final = 256 * 1024  # past it, what only people read of replicas is left away


class _Reported(Contract):
    model_config = ConfigDict(extra="ignore")


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_Reported):
    """One thing that is known about the stage."""

    type: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description="What the condition is about, in CamelCase."
    )
    status: Annotated[ConditionStatus, Field(strict=False)] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(max_length=128)] = Field("", description="Why, as one CamelCase word.")
    message: Annotated[str, Field(max_length=4096)] = Field("", description="Why, for people.")
    last_transition_time: (
        Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})] | None
    ) = Field(default=None, description="When `status` last changed.")
    observed_generation: Count | None = Field(
        default=None,
        description="Generation of the spec that this was found for.",
        json_schema_extra={"format": "int64"},
    )


class DegreesStatus(_Reported):
    """Degree of every axis."""

    tensor: Count = Field(description="Degree of tensor parallelism.")
    ulysses: Count = Field(description="Degree of Ulysses sequence parallelism.")
    ring: Count = Field(description="Degree of ring sequence parallelism.")
    pipeline: Count = Field(description="Degree of pipeline parallelism.")
    cfg: Count = Field(description="Degree of guidance parallelism.")
    data: Count = Field(description="Degree of data parallelism.")


class TopologyStatus(_Reported):
    """The rank layout that the spec gives."""

    world_size: Count = Field(description="Ranks of one replica.")
    pods_per_replica: Count = Field(description="Pods of one replica.")
    ranks_per_pod: Count = Field(description="Ranks in each pod.")
    order: Annotated[str, Field(max_length=128)] = Field(description="Order of the axes, innermost first.")
    degrees: DegreesStatus = Field(description="Degree of every axis.")
    digest: Name = Field(description="Short hash of the whole rank table; pods compare it at start.")

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """The summary of a derived topology."""
        return cls(
            world_size=topology.world_size,
            pods_per_replica=topology.pods,
            ranks_per_pod=topology.ranks_per_pod,
            order=ORDER,
            degrees=DegreesStatus.model_validate(dict(topology.degrees)),
            digest=topology.digest,
        )


class FactsStatus(PodFacts):
    """What a ready replica told of itself."""

    revision: Name = Field(description="Revision of the spec that the replica has.")
    replica: Count = Field(description="Index of the replica.")


class DiffusionStageStatus(_Reported):
    """What is known about the stage. Written by the operator only."""

    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=16)] = Field(
        default=(),
        description="What is known, one entry a type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: Count | None = Field(
        default=None,
        description="Generation of the spec that this status is about.",
        json_schema_extra={"format": "int64"},
    )
    model: Annotated[str, Field(max_length=253)] | None = Field(
        default=None, description="Name that requests use in `model`."
    )
    phase: Name | None = Field(default=None, description="Summary for people. Programs read the conditions.")
    replicas: Count | None = Field(default=None, description="Replicas that exist.")
    ready_replicas: Count | None = Field(default=None, description="Replicas that serve.")
    ready: Name | None = Field(default=None, description="Ready of wanted replicas, such as 1/2.")
    selector: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="Label selector of the pods that serve, for autoscalers."
    )
    restarts: Count | None = Field(
        default=None, description="How often replicas of the stage were restarted."
    )
    topology: TopologyStatus | None = Field(default=None, description="The rank layout that the spec gives.")
    facts: FactsStatus | None = Field(
        default=None, description="What a ready replica told of itself. Nothing is decided by it."
    )
    updated_replicas: Count | None = Field(
        default=None, description="Replicas whose pods have the spec as it is now."
    )
    disruptions: Count | None = Field(
        default=None, description="How many of the restarts were due to nodes or to people, and not counted."
    )
    revision: Name | None = Field(
        default=None,
        description="Revision of the spec as it is now; the pods of a replica have it as a label.",
    )
    observed_restart: Name | None = Field(
        default=None, description=f"The last {names.ANNOTATION_RESTART} that was acted upon."
    )
    first_epoch: Epoch | None = Field(
        default=None,
        description="Epoch of the first life of a replica that is added now: no name of a pod comes twice.",
    )
    replica_statuses: Annotated[Replicas, Field(strict=False, max_length=names.MAX_REPLICA_STATUSES)] = Field(
        default=(), description="What is known and remembered of each replica."
    )

    def fitted(self) -> Self:
        """The same, with replicas told in less detail where they are so many that it would not fit."""

        def within(limit: int) -> Callable[[Replicas], bool]:
            return lambda replicas: self._bytes_with(replicas) <= limit

        brief = spare(self.replica_statuses, within(DETAILED_BYTES))
        brief = spare(brief, within(MAX_BYTES), forget=True)
        return self if brief == self.replica_statuses else self.model_copy(update={"replica_statuses": brief})

    def _bytes_with(self, replicas: Replicas) -> int:
        changed = self.model_copy(update={"replica_statuses": replicas})
        return len(json.dumps(changed.to_json(), ensure_ascii=False).encode("utf-8", "replace"))
