"""The line between a local run and its pod: each end learns of the other's end, and of nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from stage_runtime.local.leash import ParentEnd
from support.stage_process import PATIENCE_S, environment

POD = """
import sys, threading
from stage_runtime.local.leash import ChildEnd
end = ChildEnd(int(sys.argv[1]))
end.tell("http://127.0.0.1:8000")
threading.Event().wait()
"""


def start(leash: ParentEnd) -> subprocess.Popen[bytes]:
    pod = subprocess.Popen(
        [sys.executable, "-c", POD, str(leash.fd)], pass_fds=(leash.fd,), env=environment()
    )
    leash.handed_over()
    return pod


@pytest.fixture
def pods() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for pod in started:
        pod.kill()
        pod.wait(PATIENCE_S)


def test_a_pod_ends_when_nobody_holds_the_other_end(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as leash:
        pods.append(start(leash))
        assert leash.url() == "http://127.0.0.1:8000"
        assert pods[0].poll() is None
    assert pods[0].wait(5.0) == 1


def test_a_pod_outlives_the_thread_that_started_it(pods: list[subprocess.Popen[bytes]]) -> None:
    """Case B06."""
    with ParentEnd() as leash:
        starter = threading.Thread(target=lambda: pods.append(start(leash)))
        starter.start()
        starter.join(PATIENCE_S)
        assert leash.url() is not None
        with pytest.raises(subprocess.TimeoutExpired):
            pods[0].wait(0.2)


def test_a_pod_that_ends_before_it_listens_has_no_url(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as leash:
        pods.append(subprocess.Popen([sys.executable, "-c", ""], pass_fds=(leash.fd,)))
        leash.handed_over()
        assert leash.url() is None


def test_two_runs_do_not_hold_each_others_ends(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as other:
        with ParentEnd() as leash:
            pods.append(start(leash))
            pods.append(start(other))
            assert leash.url()
            assert other.url()
        assert pods[0].wait(5.0) == 1
        assert pods[1].poll() is None
