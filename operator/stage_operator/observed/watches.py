"""What a watch of something is, whoever does the watching, and all of them as one.

kopf watches stages, pods and nodes (`kopf_watches.py`); children are watched from the lists that the cache was set
right by (`child_watches.py`). Both tell the same: kind, type and object of each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stage_operator.values import Manifest

OnEvent = Callable[[str, str | None, Manifest], None]
"""Takes what a watch tells: the kind, the type (None for what was there before), the object."""


class GivingUp(Exception):
    """Watching ended too often. A new process may do better."""


class Watch(Protocol):
    """Tells what happens to some kinds of objects, across breaks, for as long as it runs."""

    async def run(self) -> None:
        """Watch until cancelled. GivingUp if it can't be done."""

    def quiet_s(self) -> float:
        """How long nothing was asked or heard, though there was somebody to ask."""


class Watches:
    """Several at once; one that gives up ends all."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    async def run(self) -> None:
        """Watch until cancelled. GivingUp if one does."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run())

    def quiet_s(self) -> float:
        """How long the quietest of them has been so."""
        return max(watch.quiet_s() for watch in self._watches)
