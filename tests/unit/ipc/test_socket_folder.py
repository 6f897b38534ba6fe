"""Where the socket's folder goes, and what is said where none can be made: another start would find it so again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_runtime.exit import exit_code_of
from stage_runtime.ipc.socket_folder import is_left_over, prefix_of, private_folder


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Root may do everything, so these tests are somebody else's for a while."""
    if os.geteuid() == 0:
        os.seteuid(65_534)
    yield
    os.seteuid(os.getuid())


@pytest.mark.parametrize("mode", [0o300, 0o500, 0o000], ids=["not listed", "not written", "neither"])
def test_a_folder_that_cannot_be_used_is_the_configs_fault(mode: int, as_nobody: None) -> None:
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, mode)
        with pytest.raises(SpecError, match="TMPDIR: expected a folder that this user may list") as refused:
            private_folder(Path(parent), "socket")
        os.chmod(parent, 0o700)
    assert parent in str(refused.value)
    assert exit_code_of(refused.value) is ExitCode.CONFIG


@pytest.mark.parametrize("place", ["missing", "file/below", "n" * 300])
def test_a_place_that_is_no_folder_is_too(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="TMPDIR"):
        private_folder(tmp_path / place, "socket")


def test_a_folder_is_this_users_alone(tmp_path: Path) -> None:
    assert private_folder(tmp_path, "socket").stat().st_mode & 0o777 == 0o700


def test_a_process_that_runs_keeps_its_folder(tmp_path: Path) -> None:
    mine = private_folder(tmp_path, "socket")
    assert private_folder(tmp_path, "socket") != mine
    assert mine.exists()


def test_the_folder_of_a_process_that_ended_is_removed_by_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = tmp_path / f"{prefix_of(process.pid)}x7c_ab1"
    left.mkdir()
    private_folder(tmp_path, "socket")
    assert left.exists()
    process.communicate()
    private_folder(tmp_path, "socket")
    assert not left.exists()


def test_a_process_that_ended_is_dead_although_nobody_has_asked_for_its_code() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = f"{prefix_of(process.pid)}x"
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_left_over(name)
    process.wait()


def test_a_later_process_under_the_same_number_is_another() -> None:
    _, pid, ticks, namespace, _ = prefix_of(os.getpid()).split("-")
    assert is_left_over(f"omnistage-{pid}-{int(ticks) - 1}-{namespace}-x")
    assert not is_left_over(f"omnistage-{pid}-{int(ticks) - 1}-{int(namespace) + 1}-x")


@pytest.mark.parametrize("name", ["", "omnistage-", "omnistage-1-2-3", "sem.other", "omnistage-a-b-c-d"])
def test_other_names_are_nobodys(name: str) -> None:
    assert not is_left_over(name)
