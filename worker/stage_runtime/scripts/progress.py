"""How far a script is, in turns of its pipeline's own loop: the loop that a user of plain diffusers sees as a bar.

A turn may take several calls of a denoiser and several scheduler steps, and a pipeline may have several loops. What a
client is told is a share of the steps that it asked for, and reaches them with the last turn of the last loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self


class Unit(StrEnum):
    """What is counted as a turn."""

    LOOP = "loop"
    """One of a loop that has a progress bar."""
    SCHEDULER = "scheduler"
    """A scheduler's step, where there is no bar."""
    CALL = "call"
    """A call of a denoiser, where there is neither."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What the loops of a pipeline were found to be. `loops`: of each (turns, turns a step asked for), in order."""

    unit: Unit
    loops: tuple[tuple[int, int], ...] = ()

    @classmethod
    def measured(
        cls, unit: Unit, few: tuple[int, Sequence[int]], more: tuple[int, Sequence[int]]
    ) -> LoopPlan:
        """From two runs: the steps asked for, and the turns that each loop made then."""
        (steps, turns), (more_steps, more_turns) = few, more
        if len(turns) != len(more_turns) or steps == more_steps:
            return cls(unit)
        slopes = [max(0, (b - a) // (more_steps - steps)) for a, b in zip(turns, more_turns, strict=True)]
        return cls(unit, tuple((a - slope * steps, slope) for a, slope in zip(turns, slopes, strict=True)))

    def counts(self, loop: int) -> bool:
        """Is the loop one that goes by the steps asked for? Others, such as a prior's, are no progress of them."""
        return loop >= len(self.loops) or self.loops[loop][1] > 0 or not any(slope for _, slope in self.loops)

    def turns(self, steps: int) -> int:
        """Turns that count, of a request for so many steps. 0 where nobody knows."""
        return sum(
            max(0, fixed + slope * steps) for i, (fixed, slope) in enumerate(self.loops) if self.counts(i)
        )


SCHEDULER_STEPS: Final = LoopPlan(Unit.SCHEDULER)


class Progress:
    """A script's. `asked`: steps that its client wants, 0 if nobody says."""

    __slots__ = (
        "_counted",
        "_expected",
        "_open",
        "asked",
        "loops",
        "on_turn",
        "plan",
        "scheduler_steps",
        "turns",
    )

    def __init__(self, plan: LoopPlan = SCHEDULER_STEPS, asked: int = 0) -> None:
        self.plan, self.asked = plan, asked
        self.turns = 0
        """Of all loops."""
        self.scheduler_steps = 0
        self.loops: list[int] = []
        """Turns of each loop so far."""
        self.on_turn: Callable[[], None] | None = None
        """Called from inside the script at the end of each turn."""
        self._expected = plan.turns(asked)
        self._counted = 0
        self._open = 0

    @property
    def steps(self) -> int:
        """Steps done of those asked for, never more."""
        if not self.asked:
            return self._counted
        done = self._counted * self.asked // self._expected if self._expected else self._counted
        return min(done, self.asked)

    @property
    def in_loop(self) -> bool:
        """True while a loop with a bar is on."""
        return self._open > 0

    def stepped(self) -> None:
        """A scheduler's step is done."""
        self.scheduler_steps += 1
        if self.plan.unit is Unit.SCHEDULER:
            self.turn(0)

    def turn(self, loop: int, count: int = 1) -> None:
        """So many turns of a loop are done."""
        self.turns += count
        if self.plan.counts(loop):
            self._counted += count
        if self.on_turn is not None:
            self.on_turn()

    def opened(self) -> int:
        """A loop begins; its number."""
        self._open += 1
        self.loops.append(0)
        return len(self.loops) - 1

    def closed(self) -> None:
        """One has ended."""
        self._open -= 1

    def turned(self, loop: int, count: int) -> None:
        """A bar moved."""
        self.loops[loop] += count
        if self.plan.unit is Unit.LOOP:
            self.turn(loop, count)


class LoopBar:
    """Stands for the progress bar that a pipeline asks itself for, and counts."""

    def __init__(
        self, progress: Progress, iterable: Iterable[Any] | None = None, total: int | None = None
    ) -> None:
        self._progress, self._iterable = progress, iterable
        self.total: int | None = len(iterable) if hasattr(iterable, "__len__") else total  # type: ignore[arg-type]
        self.n = 0
        self._loop = progress.opened()
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        try:
            for item in () if self._iterable is None else self._iterable:
                yield item
                self.update()
        finally:
            self.close()

    def __len__(self) -> int:
        return self.total or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, n: int = 1) -> None:
        """So many turns are done."""
        self.n += n
        self._progress.turned(self._loop, n)
        if self.total is not None and self.n >= self.total:
            self.close()

    def close(self) -> None:
        """The loop has ended."""
        if not self._closed:
            self._closed = True
            self._progress.closed()

    def __getattr__(self, name: str) -> Any:
        """What else a bar can do is drawing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_options: None
