"""How ranks come up: greeted, set up, brought together, and named when they don't get there."""

from __future__ import annotations

import pytest

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.core.errors import EngineDeadError, InternalError
from stage_runtime.executor.handshake import Handshake
from stage_runtime.ipc.messages import Answered, Hello, Meet, Ready, Serving, Setup, Starting
from support.scripted import CAPABILITY

SETUP = Setup(config=b"{}", epoch=3)


def handshake(world_size: int = 2) -> Handshake:
    """Nobody has come yet."""
    return Handshake(SETUP, digest="d1", world_size=world_size)


def hello(rank: int, *, epoch: int = 3, digest: str = "d1", protocol: int = 1) -> Hello:
    """A rank that is there."""
    return Hello(rank=rank, pid=1, epoch=epoch, digest=digest, protocol=protocol)


def test_ranks_are_set_up_once_all_are_there() -> None:
    start = handshake()
    assert start.take(hello(1)) == []
    assert start.take(hello(0)) == [SETUP]


def test_ranks_are_told_where_to_meet() -> None:
    assert handshake().take(Serving(0, ("127.0.0.1", 5))) == [Meet(("127.0.0.1", 5))]


def test_it_is_complete_when_the_last_rank_is_ready() -> None:
    start = handshake()
    start.take(Ready(1, CAPABILITY))
    assert not start.complete
    start.take(Ready(0, CAPABILITY))
    assert start.complete
    assert start.capability == CAPABILITY


def test_what_rank_0_is_doing_is_told_on_and_what_the_others_do_is_not() -> None:
    heard: list[StartProgress] = []
    start = Handshake(SETUP, digest="d1", world_size=2, tell=heard.append)
    progress = StartProgress(activity=Activity.LOADING, what="vae", done=1, total=3)
    for rank in (0, 1):
        start.take(Starting(rank, progress.text(), progress.model_dump_json(by_alias=True)))
    start.take(Starting(0, "importing torch"))
    assert heard == [progress]


def test_a_missing_rank_is_named_with_what_it_is_stuck_in() -> None:
    start = handshake(3)
    start.take(hello(0))
    start.take(hello(1))
    start.take(Starting(1, "loading the model"))
    start.take(Ready(0, CAPABILITY))
    assert start.missing == "rank 1 is loading the model; rank 2 has not said hello"


@pytest.mark.parametrize("stranger", [hello(0, epoch=2), hello(0, digest="d2"), hello(0, protocol=99)])
def test_a_rank_of_another_life_is_refused(stranger: Hello) -> None:
    with pytest.raises(EngineDeadError, match="of another life"):
        handshake().take(stranger)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InternalError, match="rank 2 is not one of 2"):
        handshake().take(hello(2))


def test_a_rank_that_answers_before_it_is_ready_is_refused() -> None:
    with pytest.raises(InternalError, match="before it was ready"):
        handshake().take(Answered(rank=0, call_id=1))
