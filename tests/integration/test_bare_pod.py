"""The command of a pod where it finds little: no user of a name, no home, nothing to write to, no shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support.mp_stage import a_config
from support.stage_process import PATIENCE_S, PROMPT_S, StageProcess

pytestmark = pytest.mark.timeout(300)

NOBODY = 65532
BIG = {"prompt": "a red circle", "num_inference_steps": 2, "size": "192x192"}
SMALL = BIG | {"size": "64x64"}

TINY = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
NONE = """
mount -t tmpfs tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
"""
BARE = """
mount --bind "$OMNISTAGE_TEST_FACTS" "$OMNISTAGE_TEST_FACTS"
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cd /
exec setpriv --reuid {nobody} --regid {nobody} --clear-groups --no-new-privs env -u HOME "$@"
"""
ITS_PYTHON = """
mount --bind {python} /mnt
mount -t tmpfs -o mode=755 tmpfs {closed}
mkdir -p {python}
mount --move /mnt {python}
"""
"""Where the interpreter lies in a folder that others may not enter."""


def inside(setup: str) -> tuple[str, ...]:
    """What runs a command in a mount namespace of its own, after `setup`; skips the test where none can be had."""
    wrapper = ("unshare", "--mount", "sh", "-ec", f'{setup}\nexec "$@"', "sh")
    tried = subprocess.run(
        [*wrapper, sys.executable, "-c", ""],
        env={**os.environ, "OMNISTAGE_TEST_FACTS": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(f"needs a mount namespace: {tried.stderr.strip()}")
    return wrapper


def open_to_others() -> str:
    """What makes the interpreter's files readable for another user."""
    python = Path(sys.base_prefix).resolve()
    closed = [one for one in python.parents if not one.stat().st_mode & 0o001]
    return ITS_PYTHON.format(python=python, closed=closed[-1]) if closed else ""


def post(url: str, body: dict[str, object]) -> httpx.Response:
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=PATIENCE_S)


def test_a_pod_of_a_user_without_name_home_or_anything_to_write_to_draws(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """As the chart has it: any user id, a root file system that is read-only, and one folder for what is temporary."""
    folder = tmp_path_factory.mktemp("p")  # short, since the path of a socket has to be
    wrapper = inside(open_to_others() + BARE.format(nobody=NOBODY))
    pod = StageProcess.pod(a_config("request").encode(), folder, wrapper=wrapper)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    with pod:
        url = pod.wait_pod_ready()
        assert {process.uids().real for process in pod.family()} == {NOBODY}
        assert [post(url, body).status_code for body in (SMALL, BIG)] == [200, 200]
        pod.signal(signal.SIGTERM)
        assert pod.wait(PROMPT_S) == 0
        assert list(pod.temporary.glob("omnistage-*")) == []


def test_what_finds_no_room_in_a_tiny_shared_memory_fails_alone(tmp_path: Path) -> None:
    with StageProcess.pod(a_config("request").encode(), tmp_path, wrapper=inside(TINY)) as pod:
        url = pod.wait_pod_ready()
        refused = post(url, BIG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "out_of_memory")
        assert "in shared memory: No space left on device" in refused.json()["error"]["message"]
        assert post(url, SMALL).status_code == 200


def test_a_pod_without_shared_memory_says_so_and_does_not_start(tmp_path: Path) -> None:
    with StageProcess.pod(a_config("request").encode(), tmp_path, wrapper=inside(NONE)) as pod:
        assert pod.wait(PATIENCE_S) == 64
        assert "/dev/shm: expected a folder for shared memory" in pod.report["message"]
