"""Who is told what a start is doing: a plain callback, from the part that does it up to the engine."""

from __future__ import annotations

from collections.abc import Callable

from stage_api.startup_progress import StartProgress

Tell = Callable[[StartProgress], None]
"""Called in the thread that does it, often: it is quick and raises nothing."""


def untold(_progress: StartProgress) -> None:
    """Nobody wants to know."""
