"""Two ranks share the work of guidance: the pictures of one rank, half the rows each, and no one waits for the dead."""

from __future__ import annotations

from typing import Any

import pytest

from support.cfg_world import FAMILIES
from support.ranks import Ranks

pytestmark = pytest.mark.timeout(300)

World = list[dict[str, Any]]


@pytest.fixture(scope="module")
def world(ranks: Ranks) -> World:
    """What both ranks found for every family."""
    return ranks.results("cfg_world:families")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_wave_gives_what_one_rank_gives(world: World, family: str) -> None:
    for rank in world:
        assert sorted(rank[family]["errors"]) == ["a", "b", "c"]
        assert max(rank[family]["errors"].values()) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_each_rank_runs_half_of_the_denoisers_work(world: World, family: str) -> None:
    doubled = family not in ("flux", "qwen-image", "wan", "shapes")  # there each request is a row of two
    alone = world[0][family]["rows"][0]
    for rank in world:
        rows = rank[family]["rows"][1]
        assert rows <= (alone if doubled else alone // 2 + 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_as_resumable_on_two_ranks_as_on_one(world: World, family: str) -> None:
    for rank in world:
        alone, group = rank[family]["resumable"]
        assert alone == group


@pytest.mark.invariant("PARALLEL-INV-003")
def test_ranks_make_the_same_collectives_through_aborts_and_mixed_step_counts(world: World) -> None:
    first, second = ([rank[family]["collectives"] for family in FAMILIES] for rank in world)
    assert first == second
    assert first == sorted(set(first))  # each family made some


def test_nothing_is_held_once_all_are_done_or_aborted(world: World) -> None:
    assert all(not any(rank[family]["held"].values()) for rank in world for family in FAMILIES)


def test_previews_and_pictures_come_from_the_first_rank_and_match_to_a_level(ranks: Ranks) -> None:
    first, second = ranks.results("cfg_world:pictures")
    assert all(gap is not None and gap <= 1 for gap in first.values())
    assert second["a@2"] is None
    assert second["b@2"] is None


@pytest.mark.invariant("PARALLEL-INV-003")
def test_a_request_that_fails_on_every_rank_fails_alone_and_the_group_goes_on(ranks: Ranks) -> None:
    first, second = ranks.results("cfg_world:unanimous")
    assert first == second
    assert "this prompt is poison" in first["bad"]
    assert first["a"]
    assert first["b"]
    assert first["later"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("call", "a fault of this rank"),
        ("script", "RuntimeError: only here"),
        ("prepare", "RuntimeError: not even prepared"),
    ],
)
def test_a_request_that_fails_on_one_rank_alone_ends_the_group_and_names_the_rank(
    ranks: Ranks, how: str, why: str
) -> None:
    for kind, message, rank in ranks.results("cfg_world:apart", how=how):
        assert kind == "EngineDeadError"
        assert rank == 1
        assert why in message


def test_ranks_that_run_different_requests_find_out_at_once(ranks: Ranks) -> None:
    for kind, message, rank in ranks.results("cfg_world:apart", how="plan"):
        assert kind == "EngineDeadError"
        assert "the ranks" in message
        assert rank is None


def test_a_rank_that_dies_is_an_error_to_the_other_and_no_wait(ranks: Ranks) -> None:
    first, second = ranks.run("cfg_world:apart", how="death")
    assert second.code == 9
    kind, message, rank = first.result
    assert (kind, rank) == ("EngineDeadError", 1)
    assert "rank 1 is gone" in message
