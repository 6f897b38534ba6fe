"""When what looks like a hang is one.

A process that was frozen and thawed (SIGSTOP, a laptop's lid, a paused machine) finds its clock far ahead at the
first look, though nothing hangs. So one look is a suspicion, and only time that somebody watched confirms it.
"""

from __future__ import annotations

from typing import Final

WATCHED_S: Final = 1.0
"""For how long a hang must have been watched."""
LOOK_S: Final = 0.5
"""What one look counts at most: a longer pause before it may be a freeze."""


class SuspectedHang:
    """Whether something hangs, from looks at it. Not thread-safe; its owner serialises the looks."""

    def __init__(self) -> None:
        self._what: object = None
        self._watched_s = 0.0
        self._looked_s: float | None = None

    def confirmed(self, what: object, *, overdue: bool, now_s: float) -> bool:
        """Whether `what` (any name of it, such as a tick's number) hangs. `now_s`: the clock at this look."""
        if not overdue:
            self._looked_s = None
            return False
        if self._looked_s is None or what != self._what:
            self._what, self._watched_s = what, 0.0
        else:
            self._watched_s += min(now_s - self._looked_s, LOOK_S)
        self._looked_s = now_s
        return self._watched_s >= WATCHED_S
