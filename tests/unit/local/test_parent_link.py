"""The line between a local run and its pod: each end learns of the other's end, and of nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from stage_runtime.local.parent_link import ParentEnd
from support.stage_process import PATIENCE_S, environment

POD = """
import sys, threading
from stage_runtime.local.parent_link import ChildEnd
end = ChildEnd(int(sys.argv[1]))
end.tell("http://127.0.0.1:8000")
threading.Event().wait()
"""


def start(parent_link: ParentEnd) -> subprocess.Popen[bytes]:
    pod = subprocess.Popen(
        [sys.executable, "-c", POD, str(parent_link.fd)], pass_fds=(parent_link.fd,), env=environment()
    )
    parent_link.handed_over()
    return pod


@pytest.fixture
def pods() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for pod in started:
        pod.kill()
        pod.wait(PATIENCE_S)


def test_a_pod_ends_when_nobody_holds_the_other_end(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as parent_link:
        pods.append(start(parent_link))
        assert parent_link.url() == "http://127.0.0.1:8000"
        assert pods[0].poll() is None
    assert pods[0].wait(5.0) == 1


def test_a_pod_outlives_the_thread_that_started_it(pods: list[subprocess.Popen[bytes]]) -> None:
    """Case B06."""
    with ParentEnd() as parent_link:
        starter = threading.Thread(target=lambda: pods.append(start(parent_link)))
        starter.start()
        starter.join(PATIENCE_S)
        assert parent_link.url() is not None
        with pytest.raises(subprocess.TimeoutExpired):
            pods[0].wait(0.2)


def test_a_pod_that_ends_before_it_listens_has_no_url(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as parent_link:
        pods.append(subprocess.Popen([sys.executable, "-c", ""], pass_fds=(parent_link.fd,)))
        parent_link.handed_over()
        assert parent_link.url() is None


def test_two_runs_do_not_hold_each_others_ends(pods: list[subprocess.Popen[bytes]]) -> None:
    with ParentEnd() as other:
        with ParentEnd() as parent_link:
            pods.append(start(parent_link))
            pods.append(start(other))
            assert parent_link.url()
            assert other.url()
        assert pods[0].wait(5.0) == 1
        assert pods[1].poll() is None
