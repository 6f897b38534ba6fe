"""How a replica's ranks are laid out, as the user asks for it, and the laws of such a layout.

Decides which layouts exist, and which of them this version can run. Who sits where is `stage_api.topology`'s
affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from stage_api.base import Contract, Law, Limit
from stage_api.errors import Fault

Axis = Literal["tensor", "ulysses", "ring", "pipeline", "cfg", "data"]
AXES: Final[tuple[Axis, ...]] = ("tensor", "ulysses", "ring", "pipeline", "cfg", "data")
"""The axes, innermost first: ranks along `tensor` are adjacent, since they talk most."""

MAX_DEGREE: Final = 64
MAX_WORLD: Final = 1024
MAX_RANKS_PER_POD: Final = 16

Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]


class SequenceSpec(Contract):
    """Split of the token sequence. The two degrees multiply."""

    ulysses: Degree = Field(default=1, description="Ranks that exchange sequence shards for attention heads.")
    ring: Degree = Field(default=1, description="Ranks that pass keys and values around in a ring.")


class ParallelismSpec(Contract):
    """Rank layout of one replica. The degrees multiply to its number of ranks."""

    tensor: Degree = Field(default=1, description="Ranks that split each weight matrix.")
    sequence: SequenceSpec = Field(default=SequenceSpec(), description="Ranks that split the token sequence.")
    pipeline: Degree = Field(default=1, description="Ranks that split the denoiser by layers.")
    cfg: Annotated[int, Field(ge=1, le=2)] = Field(
        default=1, description="2 puts the two passes of classifier-free guidance on separate ranks."
    )
    data: Degree = Field(
        default=1, description="Copies of the model inside one replica. Prefer `replicas` to scale out."
    )

    executable: ClassVar[Mapping[str, Limit]] = {
        "tensor": 1,
        "sequence.ulysses": 1,
        "sequence.ring": 1,
        "pipeline": 1,
    }

    @property
    def degrees(self) -> dict[Axis, int]:
        """Degree of every axis, in the order of `AXES`."""
        return {
            "tensor": self.tensor,
            "ulysses": self.sequence.ulysses,
            "ring": self.sequence.ring,
            "pipeline": self.pipeline,
            "cfg": self.cfg,
            "data": self.data,
        }

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return prod(self.degrees.values())


class TopologySpec(Contract):
    """Where the ranks of one replica sit."""

    ranks_per_pod: Annotated[int, Field(ge=1, le=MAX_RANKS_PER_POD)] | None = Field(
        default=None,
        description="Ranks in each pod of a replica. Must divide the number of ranks. "
        f"Left out, all ranks sit in one pod, which holds at most {MAX_RANKS_PER_POD}.",
    )


def resolve_ranks_per_pod(parallelism: ParallelismSpec, topology: TopologySpec) -> int:
    """Ranks in each pod: what was asked for, else the whole world."""
    return topology.ranks_per_pod or parallelism.world_size


def _world_is_bounded(parallelism: ParallelismSpec) -> Fault | None:
    if (world := parallelism.world_size) <= MAX_WORLD:
        return None
    return Fault("parallelism", f"degrees that multiply to at most {MAX_WORLD} ranks", str(world))


def _world_fits_one_pod(parallelism: ParallelismSpec, topology: TopologySpec) -> Fault | None:
    world = parallelism.world_size
    if topology.ranks_per_pod is not None or world <= MAX_RANKS_PER_POD:
        return None
    return Fault("topology.ranksPerPod", f"a value, since {world} ranks don't fit into one pod", "nothing")


def _pods_are_full(parallelism: ParallelismSpec, topology: TopologySpec) -> Fault | None:
    world, per_pod = parallelism.world_size, topology.ranks_per_pod
    if per_pod is None or world % per_pod == 0:
        return None
    return Fault("topology.ranksPerPod", f"a divisor of the {world} ranks of a replica", str(per_pod))


def _tensor_groups_stay_together(parallelism: ParallelismSpec, topology: TopologySpec) -> Fault | None:
    tensor, per_pod = parallelism.tensor, topology.ranks_per_pod
    if per_pod is None or per_pod % tensor == 0 or tensor % per_pod == 0:
        return None
    return Fault(
        "topology.ranksPerPod",
        f"a multiple or a divisor of the tensor degree {tensor}, "
        "so that tensor groups share a pod or fill whole pods",
        str(per_pod),
    )


WORLD: Final = (
    "self.parallelism.tensor * self.parallelism.sequence.ulysses * self.parallelism.sequence.ring"
    " * self.parallelism.pipeline * self.parallelism.cfg * self.parallelism.data"
)
"""Ranks of a replica in CEL, where `self` has the field `parallelism`."""
_PER_POD: Final = "self.topology.ranksPerPod"
_TENSOR: Final = "self.parallelism.tensor"

LAYOUT_LAWS: Final = (
    Law(
        ("parallelism",),
        f"{WORLD} <= {MAX_WORLD}",
        f"the degrees must multiply to at most {MAX_WORLD} ranks",
        _world_is_bounded,
        "parallelism",
    ),
    Law(
        ("parallelism", "topology"),
        f"has({_PER_POD}) || {WORLD} <= {MAX_RANKS_PER_POD}",
        f"must be set when a replica has more than {MAX_RANKS_PER_POD} ranks",
        _world_fits_one_pod,
        "topology.ranksPerPod",
    ),
    Law(
        ("parallelism", "topology"),
        f"!has({_PER_POD}) || ({WORLD}) % {_PER_POD} == 0",
        "must divide the number of ranks, the product of all degrees",
        _pods_are_full,
        "topology.ranksPerPod",
    ),
    Law(
        ("parallelism", "topology"),
        f"!has({_PER_POD}) || {_PER_POD} % {_TENSOR} == 0 || {_TENSOR} % {_PER_POD} == 0",
        "must be a multiple or a divisor of parallelism.tensor, "
        "so that tensor groups share a pod or fill whole pods",
        _tensor_groups_stay_together,
        "topology.ranksPerPod",
    ),
)
"""Laws of the model that has the fields `parallelism` and `topology`. Stated nowhere else."""


def layout_faults(parallelism: ParallelismSpec, topology: TopologySpec) -> tuple[Fault, ...]:
    """Every law that this layout breaks; paths are relative to the spec."""
    sections = {"parallelism": parallelism, "topology": topology}
    checked = (law.check(*(sections[name] for name in law.reads)) for law in LAYOUT_LAWS)
    return tuple(fault for fault in checked if fault)
