"""Who owns a folder: a process, told from any later one under the same number."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from msgspec import Struct

MARK: Final = "omnistage"
_TEXT: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]+)-(\d+)")
_NAME: Final = re.compile(rf"{MARK}-(\d+-\d+-[0-9a-f]+-\d+)-.*")


class Owner(Struct, frozen=True):
    """A process that listens; the folder of its socket carries its name."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since boot."""
    token: str
    """Tells two listeners in one process apart."""
    namespace: int = 0
    """Inode of its PID namespace: containers may share a folder, but not its numbers."""

    @classmethod
    def current(cls) -> Owner:
        """This process, as a new owner."""
        pid = os.getpid()
        ticks = started(pid)
        assert ticks is not None
        return cls(pid, ticks, secrets.token_hex(4), _namespace())

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The owner of that `text`. Raises: ValueError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no owner")
        return cls(int(found[1]), int(found[2]), found[3], int(found[4]))

    @property
    def text(self) -> str:
        """For a name."""
        return f"{self.pid}-{self.start_ticks}-{self.token}-{self.namespace}"

    @property
    def prefix(self) -> str:
        """What the names of its folders begin with."""
        return f"{MARK}-{self.text}-"

    @property
    def dead(self) -> bool:
        """It is known to be gone. False also for one in a namespace that this process can't see into."""
        return self.namespace == _namespace() and started(self.pid) != self.start_ticks


def owner_of(name: str) -> Owner | None:
    """The owner in a folder's name; None when it is none of ours."""
    found = _NAME.fullmatch(name)
    return Owner.parse(found[1]) if found else None


def started(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none, or only what is left of it."""
    state, *fields = _stat(pid)
    return None if state in (b"", b"Z", b"X") else int(fields[18])


def is_frozen(pid: int) -> bool:
    """Whether the process is stopped, by SIGSTOP or by a debugger."""
    return _stat(pid)[0] in (b"T", b"t")


def _stat(pid: int) -> list[bytes]:
    """State, and what the kernel tells after it; an empty state when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return [b""]
    return stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
