"""Ranks meet, or say who did not come; a rank alone needs nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.outcome import ExitCode
from stage_api.parallelism import ParallelismSpec
from stage_api.topology import Topology, derive
from stage_runtime.core.errors import RendezvousTimeout
from stage_runtime.parallel.context import group_of, join, serve_store
from support.ranks import Ranks


def topology(cfg: int = 1, data: int = 1) -> Topology:
    """All ranks in one pod."""
    return derive(ParallelismSpec(cfg=cfg, data=data), cfg * data)


def sockets() -> int:
    """Open sockets of this process."""
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(_target(link).startswith("socket:") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


@pytest.mark.invariant("PARALLEL-INV-004")
@pytest.mark.parametrize("data", [1, 2])
def test_a_rank_that_has_its_copy_for_itself_opens_no_connection(data: int) -> None:
    before = sockets()
    assert join(topology(data=data), 0, ("127.0.0.1", 1), 1, 5.0, data=("cfg",)) is None
    assert sockets() == before


def test_a_group_is_the_ranks_of_one_copy_of_the_model() -> None:
    both = topology(cfg=2, data=2)
    assert [group_of(both, rank) for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_a_rank_that_nobody_joins_says_who_is_missing() -> None:
    store, port = serve_store("127.0.0.1")
    with pytest.raises(RendezvousTimeout, match="waited in vain for ranks: 1") as caught:
        join(topology(cfg=2), 0, ("127.0.0.1", port), 1, 0.5)
    assert caught.value.rank == 1
    assert caught.value.exit_code is ExitCode.RENDEZVOUS_TIMEOUT
    del store


def test_a_store_that_is_not_there_is_rank_0_s_fault() -> None:
    with pytest.raises(RendezvousTimeout, match="did not reach the store of rank 0") as caught:
        join(topology(cfg=2), 1, ("127.0.0.1", 9), 1, 0.5)
    assert caught.value.rank == 0


def test_the_store_listens_on_the_address_it_was_given() -> None:
    store, port = serve_store("127.0.0.1")
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    del store


def test_all_ranks_are_told_how_far_the_leader_has_read(ranks: Ranks) -> None:
    assert ranks.results("cfg_world:agreement") == [[7, 8], [7, 8]]


def test_frames_carry_what_each_rank_brought_whatever_its_size(ranks: Ranks) -> None:
    first, second = ranks.results("cfg_world:frames")
    assert first == second == [[0, 0], [1, 2], [1000, 2000], [100_000, 200_000]]
