"""Locks that the hub's library leaves where a file system knows no flock: a file that is there while it is held.

One whose owner was killed stays there for ever, and the library waits for it without an end or a word. So it is waited
for here, as long as the file that it guards grows, and taken away when that has stood still.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stage_runtime.core.errors import FetchFailed

PLACE: Final = Path(".cache", "huggingface", "download")
"""Where in a folder the library keeps locks and what has come of unfinished files."""
STILL_S: Final = 120.0
"""Nothing of the file came for so long: whoever held its lock is gone."""
LOOK_S: Final = 1.0
_UNKNOWN: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK})

log = logging.getLogger(__name__)


def knows_flock(folder: Path) -> bool:
    """Can files in this folder be locked, so that a lock ends with its owner?"""
    trial = folder / ".flock-trial"
    try:
        with trial.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno not in _UNKNOWN
    finally:
        trial.unlink(missing_ok=True)
    return True


def await_lock(
    folder: Path,
    path: str,
    deadline_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until nobody holds the lock of `path`; take it away once its file has stood still.

    Durations are of this process's clock alone: the files' times are another machine's. Raises: FetchFailed at the
    deadline, naming the lock.
    """
    lock = folder / PLACE / f"{path}.lock"
    since_s, before, told = clock(), _state(lock), False
    while lock.exists():
        now_s, state = clock(), _state(lock)
        if state != before:
            since_s, before = now_s, state
        if now_s - since_s >= STILL_S:
            log.warning("lock without an owner removed", extra={"lock": str(lock), "still_seconds": STILL_S})
            lock.unlink(missing_ok=True)
            return
        if now_s >= deadline_s:
            raise FetchFailed(
                f"{path} could not be fetched in time: {lock} is held, by whoever else fetches into this folder"
            )
        if not told:
            log.info("waiting for a lock", extra={"lock": str(lock)})
            told = True
        sleep(LOOK_S)


def _state(lock: Path) -> frozenset[tuple[str, int, int]]:
    """The lock and what has come of its file: names, sizes, times."""
    found = set()
    stem = lock.name.removesuffix(".lock")
    for path in lock.parent.glob(f"{stem}*") if lock.parent.is_dir() else ():
        try:
            seen = path.stat()
        except OSError:
            continue
        found.add((path.name, seen.st_size, seen.st_mtime_ns))
    return frozenset(found)
