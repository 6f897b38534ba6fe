"""Where a local run takes control calls, and how others of its user find it: a socket in a folder for them alone."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stage_runtime.ipc.socket_folder import LONGEST

_SUFFIX: Final = ".sock"


@contextmanager
def control_socket(stage: str) -> Iterator[Path]:
    """A path for the socket of this process's run of `stage`; nothing is there afterwards. Raises: OSError."""
    path = _folder() / f"{stage}.{os.getpid()}{_SUFFIX}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def runs_of(stage: str) -> list[Path]:
    """The sockets of this user's runs of `stage`, oldest first. Those whose run was killed are removed."""
    found = []
    for path in _folder().glob(f"*.*{_SUFFIX}"):  # NB: `stage` is a person's text, and no pattern
        name, _, process = path.name.removesuffix(_SUFFIX).rpartition(".")
        if name != stage:
            continue
        if process.isdecimal() and _lives(int(process)):
            found.append(path)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _folder() -> Path:
    """Only this user may enter it. Raises: OSError, also where somebody else has made it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "omnistage"
    else:
        folder = Path(tempfile.gettempdir()) / f"omnistage-{os.getuid()}"
        if len(os.fsencode(folder)) + 64 > LONGEST:
            folder = Path("/tmp") / folder.name
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder}: expected a folder that only this user may enter")
    return folder


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
