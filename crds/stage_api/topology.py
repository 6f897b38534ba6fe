"""Who sits where: the coordinates, groups and pod of every rank of a replica.

`derive` is pure and the only source of these facts. The operator and every pod derive them by
themselves from the same spec and compare digests, so a group table never crosses the wire.

Order: tensor, ulysses, ring, pipeline, cfg, data, tensor fastest. Inside a sequence group
ulysses is therefore contiguous (but for the tensor stride) and ring is strided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Final, Literal, NamedTuple

from stage_api.errors import Fault, SpecError
from stage_api.parallelism import (
    AXES,
    MAX_RANKS_PER_POD,
    Axis,
    ParallelismSpec,
    TopologySpec,
    layout_faults,
)

GroupAxis = Axis | Literal["sequence"]
GROUP_AXES: Final[tuple[GroupAxis, ...]] = (*AXES, "sequence")
"""Axes that have groups; `sequence` is ulysses and ring together."""

ORDER: Final = "-".join(AXES)
DIGEST_CHARS: Final = 16

Groups = tuple[tuple[int, ...], ...]
"""Groups of global ranks, each in the order of its axis, sorted by first rank."""


class Coordinates(NamedTuple):
    """One rank's index on each axis, in the order of `AXES`."""

    tensor: int
    ulysses: int
    ring: int
    pipeline: int
    cfg: int
    data: int


@dataclass(frozen=True)
class Topology:
    """The rank layout of one replica. Made by `derive` only."""

    degrees: Mapping[Axis, int]
    ranks_per_pod: int
    coordinates: tuple[Coordinates, ...]  # by global rank
    groups: Mapping[GroupAxis, Groups]

    @property
    def world_size(self) -> int:
        """Ranks of the replica."""
        return len(self.coordinates)

    @property
    def pods(self) -> int:
        """Pods of the replica."""
        return self.world_size // self.ranks_per_pod

    @property
    def data_primaries(self) -> tuple[int, ...]:
        """The first rank of every copy of the model, in data order."""
        return tuple(range(0, self.world_size, self.world_size // self.degrees["data"]))

    def pod_of(self, rank: int) -> int:
        """Ordinal of the pod that holds a rank."""
        return rank // self.ranks_per_pod

    def local_rank(self, rank: int) -> int:
        """Index of a rank inside its pod, and so of its device."""
        return rank % self.ranks_per_pod

    def ranks_of(self, pod: int) -> range:
        """The global ranks that one pod holds."""
        return range(pod * self.ranks_per_pod, (pod + 1) * self.ranks_per_pod)

    def group_of(self, rank: int, axis: GroupAxis) -> tuple[int, ...]:
        """The ranks that `rank` talks to along `axis`, itself among them."""
        return next(group for group in self.groups[axis] if rank in group)

    def rank_at(self, at: Coordinates) -> int:
        """The global rank with these coordinates: the inverse of `coordinates`."""
        rank, stride = 0, 1
        for axis, index in zip(AXES, at, strict=True):
            rank, stride = rank + index * stride, stride * self.degrees[axis]
        return rank

    @cached_property
    def digest(self) -> str:
        """Short hash over everything derived; equal digests mean equal tables."""
        facts = {
            "order": ORDER,
            "degrees": dict(self.degrees),
            "ranksPerPod": self.ranks_per_pod,
            "coordinates": self.coordinates,
            "groups": dict(self.groups),
        }
        canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARS]

    def rank_table(self) -> str:
        """The layout as a table for people: one line a rank."""
        head = ("rank", "pod", "local", *AXES)
        rows = [
            (str(rank), str(self.pod_of(rank)), str(self.local_rank(rank)), *map(str, at))
            for rank, at in enumerate(self.coordinates)
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in (head, *rows)
        ]
        return "\n".join(lines)


@lru_cache(maxsize=64)
def derive(parallelism: ParallelismSpec, ranks_per_pod: int) -> Topology:
    """The layout that a spec asks for.

    Raises: SpecError if the layout breaks a law (`stage_api.parallelism.LAYOUT_LAWS`).
    """
    if not 1 <= ranks_per_pod <= MAX_RANKS_PER_POD:
        expected = f"an integer 1..{MAX_RANKS_PER_POD}"
        raise SpecError([Fault("spec.topology.ranksPerPod", expected, str(ranks_per_pod))])
    if faults := layout_faults(parallelism, TopologySpec(ranks_per_pod=ranks_per_pod)):
        raise SpecError(fault.under("spec") for fault in faults)
    degrees = parallelism.degrees
    return Topology(
        degrees=degrees,
        ranks_per_pod=ranks_per_pod,
        coordinates=tuple(_coordinates(rank, degrees) for rank in range(prod(degrees.values()))),
        groups={axis: rank_groups(degrees, axis) for axis in GROUP_AXES},
    )


def rank_groups(degrees: Mapping[Axis, int], axis: GroupAxis) -> Groups:
    """Groups of global ranks along `axis`.

    Every rank is in exactly one group. An axis of degree 1 gives singletons.
    Example: tensor=2, cfg=2 and the rest 1 -> rank_groups(degrees, "cfg") == ((0, 2), (1, 3)).
    """
    stride, size = _stride_and_size(degrees, axis)
    firsts = (rank for rank in range(prod(degrees.values())) if rank // stride % size == 0)
    return tuple(tuple(first + i * stride for i in range(size)) for first in firsts)


def _stride_and_size(degrees: Mapping[Axis, int], axis: GroupAxis) -> tuple[int, int]:
    """Distance of neighbours along an axis, and how many there are."""
    members: tuple[Axis, ...] = ("ulysses", "ring") if axis == "sequence" else (axis,)
    inner = AXES[: AXES.index(members[0])]
    return prod(degrees[name] for name in inner), prod(degrees[name] for name in members)


def _coordinates(rank: int, degrees: Mapping[Axis, int]) -> Coordinates:
    indices = []
    for axis in AXES:
        rank, index = divmod(rank, degrees[axis])
        indices.append(index)
    return Coordinates(*indices)
