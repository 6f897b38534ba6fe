"""Real processes: started, noticed when they end or hang, and ended in bounded time."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import ModelError
from stage_runtime.exit import exit_code_of
from stage_runtime.processes.child import STOPS, Child, death_of, how_it_ended
from stage_runtime.processes.children import Children
from support.stage_process import until

IDLE = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()",
]
PATIENCE_S = 20.0


@pytest.fixture
def children() -> Iterator[Children]:
    """Two idle ranks."""
    made = Children()
    made.start({0: IDLE, 1: IDLE}, os.environ)
    yield made
    made.stop(lambda: None, patience_s=0.0)


def test_a_rank_that_is_killed_is_noticed_at_once(children: Children) -> None:
    exits: queue.Queue[tuple[int, int]] = queue.Queue()
    children.watch(lambda rank, code: exits.put((rank, code)))
    os.kill(children.pids[1], signal.SIGKILL)
    assert exits.get(timeout=PATIENCE_S) == (1, -signal.SIGKILL)
    assert children.ended() == {1: -signal.SIGKILL}


def test_a_rank_inherits_the_descriptor_that_is_meant_for_it_and_no_other() -> None:
    pipes = {rank: os.pipe() for rank in (0, 1)}
    tell = "import os, sys; os.write(int(sys.argv[1]), b' '.join(os.listdir(b'/proc/self/fd')))"
    children = Children()
    ends = {rank: end for rank, (_, end) in pipes.items()}
    children.start(
        {rank: [sys.executable, "-c", tell, str(end)] for rank, end in ends.items()}, os.environ, ends
    )
    for rank, (start, end) in pipes.items():
        os.close(end)
        with os.fdopen(start, "rb") as told:
            seen = set(map(int, told.read().split()))
        assert seen & {*ends.values(), pipes[0][0], pipes[1][0]} == {ends[rank]}
    children.stop(lambda: None, patience_s=0.0)


def test_stopping_ends_all_and_tells_nobody(children: Children) -> None:
    exits: queue.Queue[tuple[int, int]] = queue.Queue()
    children.watch(lambda rank, code: exits.put((rank, code)))
    pids = children.pids
    children.stop(lambda: [os.kill(pid, signal.SIGUSR1) for pid in pids.values()], patience_s=PATIENCE_S)
    assert children.ended() == {0: -signal.SIGUSR1, 1: -signal.SIGUSR1}
    assert exits.empty()


def test_a_rank_that_does_not_hear_is_killed(children: Children) -> None:
    children.stop(lambda: None, patience_s=0.01)
    assert set(children.ended()) == {0, 1}


def test_signals_that_stop_a_process_are_held_back_until_it_listens(children: Children) -> None:
    """They come in its first moments too, before it could have said what to do about them."""
    for number in STOPS:
        os.kill(children.pids[0], number)
    status = Path(f"/proc/{children.pids[0]}/status").read_text()
    assert set(STOPS) <= _signals(status, "ShdPnd") | _signals(status, "SigPnd")
    assert children.ended() == {}


def test_a_process_leaves_it_to_its_parent_when_to_stop() -> None:
    code = "import os, signal; from stage_runtime.processes.parent import end_with; end_with(os.getppid()); "
    child = Child([sys.executable, "-c", code + "os.write(1, b'x'); signal.pause()"], os.environ)
    until(
        lambda: set(STOPS) <= _signals(Path(f"/proc/{child.pid}/status").read_text(), "SigIgn"),
        "it ignores them",
    )
    for number in STOPS:
        child.send(number)
    assert child.wait(0.2) is None
    child.close()
    assert child.code == -signal.SIGKILL


def test_a_process_that_is_stopped_is_told_once_and_one_that_goes_on_again_is_not(children: Children) -> None:
    """SIGSTOP or a debugger: it lives, and does nothing. Within twelve seconds, as on another machine."""
    stopped: queue.Queue[int] = queue.Queue()
    children.watch(lambda _number, _code: None, stopped.put)
    began_s = time.monotonic()
    for pid in children.pids.values():
        os.kill(pid, signal.SIGSTOP)
    until(lambda: children.frozen() == {0, 1}, "both are stopped")
    os.kill(children.pids[0], signal.SIGCONT)
    assert stopped.get(timeout=PATIENCE_S) == 1
    assert 8.0 < time.monotonic() - began_s < 13.0
    assert stopped.empty()
    children.stop(lambda: None, patience_s=0.0)
    assert stopped.empty()


def _signals(status: str, field: str) -> set[int]:
    mask = int(next(line for line in status.splitlines() if line.startswith(field)).split()[1], 16)
    return {number for number in range(1, 64) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("frozen", [False, True], ids=["deaf", "frozen"])
def test_a_rank_that_cannot_be_terminated_is_killed(frozen: bool) -> None:
    children = Children()
    children.start({0: DEAF}, os.environ)
    if frozen:
        os.kill(children.pids[0], signal.SIGSTOP)
    children.stop(lambda: None, patience_s=0.02)
    assert children.ended()[0] < 0


def test_stopping_twice_is_no_error(children: Children) -> None:
    children.stop(lambda: None, patience_s=0.01)
    children.stop(lambda: None, patience_s=0.01)


def test_a_rank_that_cannot_be_started_leaves_none_behind() -> None:
    children = Children()
    with pytest.raises(OSError, match="no-such-program"):
        children.start({0: IDLE, 1: ["/no-such-program"]}, os.environ)
    assert children.ended()[0] < 0


@pytest.mark.parametrize("code", [ExitCode.CONFIG, ExitCode.MODEL])
def test_an_end_for_the_config_or_the_model_is_theirs(code: ExitCode) -> None:
    with pytest.raises((SpecError, ModelError)) as raised:
        death_of("it", code)
    assert exit_code_of(raised.value) is code


@pytest.mark.parametrize("code", [-9, 1, *(code for code in ExitCode if code >= ExitCode.RANK_DIED)])
def test_every_other_end_keeps_its_code(code: int) -> None:
    assert exit_code_of(death_of("it", code)) == (code if code >= 70 else 70)


def test_ends_are_told_in_words() -> None:
    assert how_it_ended(71) == "exited with code 71"
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-1000) == "was killed by signal 1000"
