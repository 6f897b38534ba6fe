"""How thorough a run is."""

from __future__ import annotations

from dataclasses import dataclass

QUICK_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Options:
    """`quick`: as few rounds as it takes to see that everything works."""

    quick: bool = False

    def rounds(self, thorough: int) -> int:
        """How often to measure."""
        return min(thorough, QUICK_ROUNDS) if self.quick else thorough
