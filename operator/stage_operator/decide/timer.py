"""The clock of one decision, which notes when it must be made again."""

from __future__ import annotations

from typing import Final


class Timer:
    """Answers whether a time has come; the next one that has not is when to look again."""

    def __init__(self, now_s: float) -> None:
        self.now_s: Final = now_s
        self.wake_at_s: float | None = None

    def due(self, at_s: float) -> bool:
        """Whether it is that time."""
        if at_s <= self.now_s:
            return True
        self.wake_at_s = at_s if self.wake_at_s is None else min(self.wake_at_s, at_s)
        return False
