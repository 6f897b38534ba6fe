"""A private folder for a socket file: short, and swept by a later start if its process was killed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_runtime.ipc.owner import Owner, owner_of

LONGEST: Final = 107
"""Bytes in the path of a Unix socket."""
_MAY_PASS: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
    errno.ESTALE,
)


def private_folder(parent: Path | None, file: str) -> Path:
    """A new folder that only this user may enter, in `parent` or the system's temporary folder, for a socket `file`.

    Folders there of processes that are dead are removed first. Raises: SpecError for a folder that can't be used;
    OSError for what may pass, such as a full disk.
    """
    prefix = Owner.current().prefix
    try:
        if parent is None:
            parent = Path(tempfile.gettempdir())
            if len(os.fsencode(parent / prefix / file)) + len("12345678") > LONGEST:
                parent = Path("/tmp")
        _sweep(parent)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        if error.errno in _MAY_PASS:
            raise
        expected = "a folder that this user may list and write to"
        raise SpecError([Fault("TMPDIR", expected, f"{parent}: {error.strerror or error}")]) from error


def _sweep(parent: Path) -> None:
    for name in os.listdir(parent):
        owner = owner_of(name)
        if owner is not None and owner.dead:
            with suppress(OSError):  # another user's
                shutil.rmtree(parent / name)
