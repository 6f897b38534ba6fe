"""A group of ranks rests and wakes as one, whatever fails on one of them."""

from __future__ import annotations

import pytest

from stage_runtime.core.control import Control, Pause, Resume, Sleep, Wake
from stage_runtime.core.errors import EngineDeadError, RequestFailed
from stage_runtime.executor.group_sleep import GroupSleep


class Ranks:
    """Two ranks that carry out calls as sessions do. `fails`: (rank, kind of call) that is to fail once."""

    def __init__(self, *fails: tuple[int, type]) -> None:
        self.paused, self.level = [False, False], [0, 0]
        self._fails = list(fails)

    def __call__(self, call: Control) -> object:
        failed = [rank for rank in (0, 1) if not self._done(rank, call)]
        if failed:
            raise RequestFailed(f"rank {failed[0]}: disk full")
        return (1, 1)

    def _done(self, rank: int, call: Control) -> bool:
        if (rank, type(call)) in self._fails:
            self._fails.remove((rank, type(call)))
            return False
        match call:
            case Pause():
                self.paused[rank] = True
            case Resume():
                if self.level[rank]:
                    return False
                self.paused[rank] = False
            case Sleep(level=level):
                self.level[rank] = max(level, self.level[rank])
            case Wake():
                self.level[rank] = 0
        return True


FAILING = pytest.mark.parametrize("rank", [0, 1])


@FAILING
def test_ranks_of_which_one_can_t_sleep_all_go_on_as_before(rank: int) -> None:
    ranks = Ranks((rank, Sleep))
    rest = GroupSleep(ranks)
    with pytest.raises(RequestFailed, match="disk full"):
        rest.carry_out(Sleep(2))
    assert (ranks.paused, ranks.level) == ([False, False], [0, 0])


@FAILING
def test_paused_ranks_of_which_one_can_t_sleep_stay_paused_and_may_resume(rank: int) -> None:
    ranks = Ranks((rank, Sleep))
    rest = GroupSleep(ranks)
    rest.carry_out(Pause())
    with pytest.raises(RequestFailed):
        rest.carry_out(Sleep(2))
    assert (ranks.paused, ranks.level) == ([True, True], [0, 0])
    rest.carry_out(Resume())
    assert ranks.paused == [False, False]


@FAILING
def test_ranks_of_which_one_can_t_sleep_deeper_all_sleep_on(rank: int) -> None:
    ranks = Ranks()
    rest = GroupSleep(ranks)
    rest.carry_out(Sleep(1))
    ranks._fails.append((rank, Sleep))
    with pytest.raises(RequestFailed):
        rest.carry_out(Sleep(2))
    assert ranks.paused == [True, True]
    assert all(ranks.level)


@FAILING
def test_nobody_goes_on_while_one_can_t_wake(rank: int) -> None:
    ranks = Ranks((rank, Wake))
    rest = GroupSleep(ranks)
    rest.carry_out(Sleep(2))
    with pytest.raises(RequestFailed):
        rest.carry_out(Wake())
    assert ranks.paused == [True, True]
    rest.carry_out(Wake())
    assert (ranks.paused, ranks.level) == ([False, False], [0, 0])


def test_a_group_that_can_neither_sleep_nor_wake_is_dead() -> None:
    rest = GroupSleep(Ranks((1, Sleep), (0, Wake)))
    with pytest.raises(EngineDeadError, match="can't be had back"):
        rest.carry_out(Sleep(2))
