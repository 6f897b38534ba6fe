"""Where the socket's folder goes, and what is said where none can be made: another start would find it so again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_runtime.exit import exit_code_of
from stage_runtime.ipc.folder import private_folder


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
