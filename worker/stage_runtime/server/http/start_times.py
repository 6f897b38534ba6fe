"""How long starts of this stage take, and so when a client is to come back that came too early.

Told by what started it, which may know of a life before, and by this life's own start. Times in seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from stage_runtime.core.errors import EngineDeadError, NotAdmitting, StageError
from stage_runtime.engine.phase import STARTING, Phase
from stage_runtime.hosting.client import StageClient

RESTART_S: Final = 3.0
"""From a death until the next life begins to start: last answers, the end of the process, the new one."""
UNTOLD_S: Final = 5.0
"""A start of which nothing is known; the next guess is as long again as it has taken by then."""
LONGEST_S: Final = 60.0
"""Clients take a longer wait for a mistake, and come back when they like."""
LOOK_S: Final = 0.1


class StartTimes:
    """The one start of this life, and what is known of others. Used on the event loop."""

    def __init__(self, last_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`last_s`: what the start of the life before took, if there was one."""
        self._took_s = last_s
        self._clock = clock
        self._began_s = clock()

    async def watch(self, stage: StageClient) -> None:
        """Note when the start is over. An engine tells nobody of its phases, so it is looked at."""
        while (phase := stage.phase) is not Phase.READY:
            if phase not in STARTING:
                return
            await asyncio.sleep(LOOK_S)
        self.over()

    def over(self) -> None:
        """Requests are admitted from now on."""
        self._took_s = self._clock() - self._began_s

    @property
    def took_s(self) -> float | None:
        """What the last start that is known took."""
        return self._took_s

    def retry_after_s(self, error: StageError, phase: Phase) -> float | None:
        """When to come back after `error`; None where another wait than for a start is meant."""
        if isinstance(error, NotAdmitting) and phase in STARTING:
            return self._left_s()
        if isinstance(error, EngineDeadError) and self._took_s is not None:
            return min(RESTART_S + self._took_s, LONGEST_S)
        return None

    def _left_s(self) -> float:
        elapsed_s = self._clock() - self._began_s
        if self._took_s is not None and self._took_s > elapsed_s:
            return min(self._took_s - elapsed_s, LONGEST_S)
        return min(max(elapsed_s, UNTOLD_S), LONGEST_S)
