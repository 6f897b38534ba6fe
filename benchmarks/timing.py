"""Wall and CPU time of one thing beside another: measured in turn, compared round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median


@dataclass(slots=True)
class Times:
    """One variant's seconds, an entry a round; `cpu` is the whole process's."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, work: Callable[[], object]) -> None:
        """Do `work` once and note how long it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def per(self, count: int) -> dict[str, float]:
        """Milliseconds for one of `count` things done in a round."""
        return {
            "wall_ms_median": median(self.wall) * 1e3 / count,
            "wall_ms_min": min(self.wall) * 1e3 / count,
            "cpu_ms_median": median(self.cpu) * 1e3 / count,
            "cpu_ms_min": min(self.cpu) * 1e3 / count,
        }


def in_turn(variants: Mapping[str, Callable[[int], object]], rounds: int) -> dict[str, Times]:
    """Each variant once a round, called with the round's number; who goes first changes from round to round."""
    names = list(variants)
    times = {name: Times() for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            times[name].take(partial(variants[name], number))
    return times


@dataclass(frozen=True, slots=True)
class Ratio:
    """How long one took compared with the other. `wall` and `cpu` are medians of the rounds' ratios."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, ours: Times, theirs: Times) -> Ratio:
        """Of times taken in the same rounds."""
        return cls(wall=paired(ours.wall, theirs.wall), cpu=paired(ours.cpu, theirs.cpu))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the rounds' ratios."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))
