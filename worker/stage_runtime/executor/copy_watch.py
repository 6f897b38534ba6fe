"""Which busy copy of the model hangs while others move: the engine as a whole sees progress then. Pure.

Times in seconds on one monotonic clock.
"""

from __future__ import annotations

from stage_runtime.core.suspected_hang import SuspectedHang


class CopyWatch:
    """Since when each busy copy has said nothing, and for how long it may."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._suspicions: dict[int, SuspectedHang] = {}
        self._limit_s: float | None = None
        self._moved = True

    def busy(self, copies: set[int], now_s: float) -> None:
        """These copies work, from now on or still; the others wait."""
        for copy in copies:
            self._since_s.setdefault(copy, now_s)
        for copy in set(self._since_s) - copies:
            del self._since_s[copy]

    def heard(self, copy: int, now_s: float) -> None:
        """A copy has told what it did."""
        self._moved = True
        if copy in self._since_s:
            self._since_s[copy] = now_s

    def allow(self, patience_s: float | None) -> None:
        """How long the engine would wait now for anybody to move; None: for ever, since it is paused.

        NB: what is left of its patience shrinks while nobody moves, so the limit is what it was after the last move.
        """
        if patience_s is None:
            self._since_s.clear()
            self._limit_s = None
        elif self._moved or self._limit_s is None:
            self._limit_s = patience_s
        else:
            self._limit_s = max(self._limit_s, patience_s)
        self._moved = False

    def hung(self, now_s: float) -> tuple[int, float] | None:
        """A copy that hangs, and for how long it has said nothing; None while there is none."""
        if self._limit_s is None:
            return None
        for copy, since_s in self._since_s.items():
            overdue = now_s - since_s > self._limit_s
            suspicion = self._suspicions.setdefault(copy, SuspectedHang())
            if suspicion.confirmed(since_s, overdue=overdue, now_s=now_s):
                return copy, now_s - since_s
        return None
