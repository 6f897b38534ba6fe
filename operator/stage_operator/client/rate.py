"""How many requests may go: so many a second in the long run, more at once after a rest, none while told to wait."""

from __future__ import annotations

from typing import Final


class Bucket:
    """Tokens that come at a steady rate. Decides with the clock passed in; whoever takes one waits as long as told."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate: Final = rate
        self._burst: Final = burst
        self._tokens = float(burst)
        self._at = now
        self._closed_until = now

    def take(self, now: float) -> float:
        """Take one, on credit if there is none. The answer is how many seconds to wait before using it."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        self._tokens -= 1
        owed_s = max(0.0, -self._tokens) / self._rate
        return max(owed_s, self._closed_until - now, 0.0)

    def close(self, until: float) -> None:
        """None may be used before that time: the server asked for it."""
        self._closed_until = max(self._closed_until, until)
