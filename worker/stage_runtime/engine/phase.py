"""Where an engine is in its life, and how far its current tick is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Phase(StrEnum):
    """An engine's life. CLOSED and DEAD are final."""

    CREATED = "created"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has, and admits nothing."""
    CLOSED = "closed"
    DEAD = "dead"
    """Failed to start, or failed later: nothing is served again."""


STARTING: Final = frozenset({Phase.CREATED, Phase.LOADING, Phase.WARMING})
"""Before requests are admitted."""
FINAL: Final = frozenset({Phase.CLOSED, Phase.DEAD})


class Progress(Struct, frozen=True):
    """How the loop gets on. A liveness probe compares `elapsed_s` with `limit_s`."""

    tick: int
    """Ticks so far, the current one included; 0 while the model loads."""
    elapsed_s: float
    """Seconds since the current tick, or the loading, began; 0 while idle."""
    limit_s: float | None
    """Seconds after which it counts as hung; None while idle."""

    @property
    def overdue(self) -> bool:
        """True when the loop hangs."""
        return self.limit_s is not None and self.elapsed_s > self.limit_s
