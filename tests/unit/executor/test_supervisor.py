"""Real processes: started, noticed when they end, and ended in bounded time."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Iterator

import pytest

from stage_runtime.executor.supervisor import Supervisor, how_it_ended

IDLE = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()",
]
PATIENCE_S = 20.0


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """Two idle ranks."""
    made = Supervisor()
    made.start({0: IDLE, 1: IDLE}, os.environ)
    yield made
    made.stop(lambda: None, patience_s=0.0)


def test_a_rank_that_is_killed_is_noticed_at_once(supervisor: Supervisor) -> None:
    exits: queue.Queue[tuple[int, int]] = queue.Queue()
    supervisor.watch(lambda rank, code: exits.put((rank, code)))
    os.kill(supervisor.pids[1], signal.SIGKILL)
    assert exits.get(timeout=PATIENCE_S) == (1, -signal.SIGKILL)
    assert supervisor.ended() == {1: -signal.SIGKILL}


def test_a_rank_inherits_the_descriptor_that_is_meant_for_it_and_no_other() -> None:
    pipes = {rank: os.pipe() for rank in (0, 1)}
    tell = "import os, sys; os.write(int(sys.argv[1]), b' '.join(os.listdir(b'/proc/self/fd')))"
    supervisor = Supervisor()
    ends = {rank: end for rank, (_, end) in pipes.items()}
    supervisor.start(
        {rank: [sys.executable, "-c", tell, str(end)] for rank, end in ends.items()}, os.environ, ends
    )
    for rank, (start, end) in pipes.items():
        os.close(end)
        with os.fdopen(start, "rb") as told:
            seen = set(map(int, told.read().split()))
        assert seen & {*ends.values(), pipes[0][0], pipes[1][0]} == {ends[rank]}
    supervisor.stop(lambda: None, patience_s=0.0)


def test_stopping_ends_all_and_tells_nobody(supervisor: Supervisor) -> None:
    exits: queue.Queue[tuple[int, int]] = queue.Queue()
    supervisor.watch(lambda rank, code: exits.put((rank, code)))
    pids = supervisor.pids
    supervisor.stop(lambda: [os.kill(pid, signal.SIGTERM) for pid in pids.values()], patience_s=PATIENCE_S)
    assert supervisor.ended() == {0: -signal.SIGTERM, 1: -signal.SIGTERM}
    assert exits.empty()


def test_a_rank_that_does_not_hear_is_terminated(supervisor: Supervisor) -> None:
    supervisor.stop(lambda: None, patience_s=0.01)
    assert set(supervisor.ended()) == {0, 1}


@pytest.mark.parametrize("frozen", [False, True], ids=["deaf", "frozen"])
def test_a_rank_that_cannot_be_terminated_is_killed(frozen: bool) -> None:
    supervisor = Supervisor()
    supervisor.start({0: DEAF}, os.environ)
    if frozen:
        os.kill(supervisor.pids[0], signal.SIGSTOP)
    supervisor.stop(lambda: None, patience_s=0.02)
    assert supervisor.ended()[0] < 0


def test_stopping_twice_is_no_error(supervisor: Supervisor) -> None:
    supervisor.stop(lambda: None, patience_s=0.01)
    supervisor.stop(lambda: None, patience_s=0.01)


def test_a_rank_that_cannot_be_started_leaves_none_behind() -> None:
    supervisor = Supervisor()
    with pytest.raises(OSError, match="no-such-program"):
        supervisor.start({0: IDLE, 1: ["/no-such-program"]}, os.environ)
    assert supervisor.ended()[0] < 0


def test_ends_are_told_in_words() -> None:
    assert how_it_ended(71) == "exited with code 71"
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-1000) == "was killed by signal 1000"
