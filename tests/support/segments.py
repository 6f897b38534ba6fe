"""Shared memory that a process has. Segments have no names, so only who holds them tells of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NAMELESS: Final = "/dev/shm/#"
"""What the kernel shows of a file there that has no name."""


def mapped(pid: int | str = "self") -> int:
    """How many segments it maps."""
    return Path(f"/proc/{pid}/maps").read_text().count(NAMELESS)


def opened(pid: int | str = "self") -> int:
    """How many it has as open files: those that it maps, and those that it got and hasn't mapped yet."""
    links = []
    for file in os.listdir(folder := f"/proc/{pid}/fd"):
        with suppress(OSError):  # closed by now
            links.append(os.readlink(f"{folder}/{file}"))
    return sum(link.startswith(NAMELESS) for link in links)


def held(pid: int | str = "self") -> int:
    """Both."""
    return mapped(pid) + opened(pid)
