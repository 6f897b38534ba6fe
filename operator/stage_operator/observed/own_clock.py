"""The clock that the operator measures by: UNIX time as it was when the process began, and from then on without a step.

Somebody who sets a machine's clock right must not end, hold or hurry a replica by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class OwnClock:
    """Called, it gives seconds."""

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._ahead_s = wall() - steady()
        self._steady = steady

    def __call__(self) -> float:
        """UNIX time, as far as this process can know it."""
        return self._ahead_s + self._steady()
