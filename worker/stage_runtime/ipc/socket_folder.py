"""A private folder for a socket file: short, and swept by a later start if its process was killed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_runtime.processes.child import started

LONGEST: Final = 107
"""Bytes in the path of a Unix socket."""
_NAME: Final = re.compile(r"omnistage-(\d+)-(\d+)-(\d+)-.*")
_MAY_PASS: Final = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)


def private_folder(parent: Path | None, file: str) -> Path:
    """A new folder that only this user may enter, in `parent` or the system's temporary folder, for a socket `file`.

    Folders there of processes that are dead are removed first. Raises: SpecError for a folder that can't be used;
    OSError for what may pass, such as a full disk.
    """
    prefix = prefix_of(os.getpid())
    try:
        if parent is None:
            parent = Path(tempfile.gettempdir())
            if len(os.fsencode(parent / prefix / file)) + len("12345678") > LONGEST:
                parent = Path("/tmp")
        for name in os.listdir(parent):
            if is_left_over(name):
                with suppress(OSError):  # another user's
                    shutil.rmtree(parent / name)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        if error.errno in _MAY_PASS:
            raise
        expected = "a folder that this user may list and write to"
        raise SpecError([Fault("TMPDIR", expected, f"{parent}: {error.strerror or error}")]) from error


def prefix_of(pid: int) -> str:
    """What the names of a process's folders begin with: it is told from a later one under the same number.

    The third number is the inode of the PID namespace: containers may share a folder, but not its numbers.
    """
    return f"omnistage-{pid}-{started(pid)}-{_namespace()}-"


def is_left_over(name: str) -> bool:
    """Whether the folder `name` is of a process that is known to be gone."""
    found = _NAME.fullmatch(name)
    if found is None:
        return False
    pid, ticks, namespace = map(int, found.groups())
    return namespace == _namespace() and started(pid) != ticks


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
