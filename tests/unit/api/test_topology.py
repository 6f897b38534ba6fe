"""The rank layout, against a definition that shares nothing with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import pytest

from stage_api.errors import SpecError
from stage_api.parallelism import AXES, Axis, ParallelismSpec, SequenceSpec
from stage_api.topology import GROUP_AXES, Coordinates, GroupAxis, Topology, derive

MAX_RANKS = 16


def layouts(limits: tuple[int, ...], ranks: int) -> Iterator[tuple[int, ...]]:
    """Every choice of degrees within `limits`, one an axis, that multiplies to at most `ranks`."""
    if not limits:
        yield ()
        return
    for degree in range(1, min(limits[0], ranks) + 1):
        for rest in layouts(limits[1:], ranks // degree):
            yield (degree, *rest)


LAYOUTS = tuple(layouts((MAX_RANKS, MAX_RANKS, MAX_RANKS, MAX_RANKS, 2, MAX_RANKS), MAX_RANKS))


def parallelism(degrees: tuple[int, ...]) -> ParallelismSpec:
    tensor, ulysses, ring, pipeline, cfg, data = degrees
    return ParallelismSpec(
        tensor=tensor,
        sequence=SequenceSpec(ulysses=ulysses, ring=ring),
        pipeline=pipeline,
        cfg=cfg,
        data=data,
    )


def derived(*degrees: int, ranks_per_pod: int | None = None) -> Topology:
    return derive(parallelism(degrees), ranks_per_pod or prod(degrees))


def brute_force_coordinates(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates by rank: count with the last axis slowest, which `product` does in reverse."""
    return [at[::-1] for at in product(*(range(degree) for degree in reversed(degrees)))]


def brute_force_groups(degrees: tuple[int, ...], axis: GroupAxis) -> set[tuple[int, ...]]:
    """Ranks that agree on every coordinate but those of `axis`."""
    varying = {"ulysses", "ring"} if axis == "sequence" else {axis}
    fixed = [i for i, name in enumerate(AXES) if name not in varying]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(brute_force_coordinates(degrees)):
        groups.setdefault(tuple(at[i] for i in fixed), []).append(rank)
    return {tuple(group) for group in groups.values()}


@pytest.mark.invariant("PARALLEL-INV-001")
def test_coordinates_agree_with_counting_for_every_layout_of_up_to_16_ranks() -> None:
    for degrees in LAYOUTS:
        assert [tuple(at) for at in derived(*degrees).coordinates] == brute_force_coordinates(degrees)


@pytest.mark.invariant("PARALLEL-INV-001")
def test_groups_agree_with_their_definition_for_every_layout_of_up_to_16_ranks() -> None:
    for degrees in LAYOUTS:
        topology = derived(*degrees)
        for axis in GROUP_AXES:
            assert set(topology.groups[axis]) == brute_force_groups(degrees, axis), (degrees, axis)


@pytest.mark.invariant("PARALLEL-INV-001")
def test_groups_of_every_axis_partition_the_ranks() -> None:
    for degrees in LAYOUTS:
        topology = derived(*degrees)
        for axis in GROUP_AXES:
            members = [rank for group in topology.groups[axis] for rank in group]
            assert sorted(members) == list(range(topology.world_size)), (degrees, axis)


@pytest.mark.invariant("PARALLEL-INV-001")
def test_rank_at_inverts_coordinates() -> None:
    for degrees in LAYOUTS:
        topology = derived(*degrees)
        assert [topology.rank_at(at) for at in topology.coordinates] == list(range(topology.world_size))


def test_groups_are_in_the_order_of_their_axis() -> None:
    for degrees in LAYOUTS:
        topology = derived(*degrees)
        for i, axis in enumerate(AXES):
            for group in topology.groups[axis]:
                assert [topology.coordinates[rank][i] for rank in group] == list(range(len(group)))


def test_different_layouts_have_different_digests() -> None:
    digests = {derived(*degrees).digest for degrees in LAYOUTS}
    assert len(digests) == len(LAYOUTS)


def test_digest_depends_on_where_the_pods_are_cut() -> None:
    assert derived(4, 1, 1, 1, 1, 1).digest != derived(4, 1, 1, 1, 1, 1, ranks_per_pod=2).digest


def test_digest_stays_what_it_was() -> None:
    # A change here makes running pods refuse configs of the new version: raise CONTRACT_VERSION with it.
    assert derived(2, 2, 2, 1, 2, 1).digest == "fbed1cf54859e4fc"


@pytest.mark.parametrize(
    ("axis", "first"),
    [
        ("tensor", (0, 1)),
        ("ulysses", (0, 2)),
        ("ring", (0, 4)),
        ("sequence", (0, 2, 4, 6)),
        ("pipeline", (0, 8)),
        ("cfg", (0, 16)),
        ("data", (0, 32)),
    ],
)
def test_strides_grow_from_tensor_to_data(axis: GroupAxis, first: tuple[int, ...]) -> None:
    assert derived(2, 2, 2, 2, 2, 2, ranks_per_pod=16).groups[axis][0] == first


def test_ulysses_is_contiguous_and_ring_strided_inside_a_sequence_group() -> None:
    topology = derived(1, 4, 2, 1, 1, 1)
    assert topology.groups["sequence"] == (tuple(range(8)),)
    assert topology.groups["ulysses"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert topology.groups["ring"] == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_one_rank_is_alone_in_every_group() -> None:
    topology = derived(1, 1, 1, 1, 1, 1)
    assert topology.coordinates == (Coordinates(0, 0, 0, 0, 0, 0),)
    assert set(topology.groups.values()) == {((0,),)}


def test_a_rank_finds_its_own_group() -> None:
    topology = derived(2, 1, 1, 1, 2, 1)
    assert topology.group_of(3, "cfg") == (1, 3)
    assert topology.group_of(3, "tensor") == (2, 3)


def test_data_primaries_are_the_first_ranks_of_the_copies() -> None:
    assert derived(2, 1, 1, 1, 2, 3, ranks_per_pod=4).data_primaries == (0, 4, 8)


def test_every_rank_has_one_place_in_one_pod() -> None:
    topology = derived(4, 2, 1, 1, 1, 1, ranks_per_pod=2)
    places = [(topology.pod_of(rank), topology.local_rank(rank)) for rank in range(8)]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert topology.pods == 4
    assert [rank for pod in range(4) for rank in topology.ranks_of(pod)] == list(range(8))


def test_rank_table_has_one_line_a_rank_under_the_names_of_the_axes() -> None:
    lines = derived(2, 1, 1, 1, 2, 1, ranks_per_pod=2).rank_table().splitlines()
    assert lines[0].split() == ["rank", "pod", "local", *AXES]
    assert lines[4].split() == ["3", "1", "1", "1", "0", "0", "0", "1", "0"]
    assert len({len(line) for line in lines}) == 1


def test_tensor_groups_share_a_pod_or_fill_whole_pods_wherever_derive_accepts() -> None:
    for degrees in LAYOUTS:
        for per_pod in range(1, prod(degrees) + 1):
            try:
                topology = derived(*degrees, ranks_per_pod=per_pod)
            except SpecError:
                continue
            for group in topology.groups["tensor"]:
                pods = {topology.pod_of(rank) for rank in group}
                assert len(pods) == 1 or len(pods) * per_pod == len(group), (degrees, per_pod)


@pytest.mark.parametrize(
    ("degrees", "ranks_per_pod", "message"),
    [
        ((3, 1, 1, 1, 1, 1), 2, "a divisor of the 3 ranks"),
        ((3, 1, 1, 1, 2, 1), 2, "tensor degree 3"),
        ((2, 1, 1, 1, 1, 1), 0, "an integer 1..16"),
        ((1, 1, 1, 32, 1, 1), 32, "an integer 1..16"),
        ((64, 64, 1, 1, 1, 1), 16, "at most 1024 ranks"),
    ],
)
def test_derive_refuses_a_layout_that_breaks_a_law(
    degrees: tuple[int, ...], ranks_per_pod: int, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        derive(parallelism(degrees), ranks_per_pod)


def test_every_axis_has_a_degree() -> None:
    degrees: dict[Axis, int] = parallelism((1, 2, 3, 4, 2, 6)).degrees
    assert tuple(degrees) == AXES
    assert tuple(degrees.values()) == (1, 2, 3, 4, 2, 6)
