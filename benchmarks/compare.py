"""Two checkouts' figures of the same rounds: how one stands to the other, and whether that is more than chance.

A wall ratio, which a row has where its benchmark measures something else in the same rounds, may differ by 3 %. All
else may also differ by its own spread: the checkouts' figures, from the least to the largest, reach into each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.report import aligned

WITHIN: Final = 0.03
"""What a wall ratio may differ by."""

Row = Mapping[str, Any]
Round = Mapping[str, Row]
"""One run's rows by their name, as `report.write_json` writes them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row's figures, an entry a round: `ours` beside `theirs`."""

    what: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    wall_ratio: bool
    """They are ratios of wall times, not plain values."""
    exact: bool = False
    """A busy machine doesn't change it; more is as strange as less."""
    at_least: bool = False
    """More is better."""

    @property
    def quotients(self) -> tuple[float, ...]:
        """Ours over theirs, round by round; none where theirs is nothing."""
        if not all(self.theirs):
            return ()
        return tuple(one / other for one, other in zip(self.ours, self.theirs, strict=True))

    @property
    def alike(self) -> bool:
        """The difference is no more than it may be."""
        return self._close if self.wall_ratio else self._spreads_meet or (self._close and not self.exact)

    @property
    def _close(self) -> bool:
        return bool(self.quotients) and abs(median(self.quotients) - 1) <= WITHIN

    @property
    def _spreads_meet(self) -> bool:
        return min(self.ours) <= max(self.theirs) and min(self.theirs) <= max(self.ours)

    @property
    def worse(self) -> bool:
        """Not alike, and not for the better."""
        if self.alike:
            return False
        more = median(self.ours) > median(self.theirs)
        return self.exact or more != self.at_least

    @property
    def verdict(self) -> str:
        """The same in words."""
        if self.alike:
            by_spread = not self.wall_ratio and self._spreads_meet
            return "within its spread" if by_spread else f"within {WITHIN:.0%}"
        return "WORSE" if self.worse else "better"


def compare(ours: Sequence[Round], theirs: Sequence[Round]) -> list[Comparison]:
    """Every figure that all runs of both have, in our order. Raises: ValueError when the rounds are not as many."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds beside {len(theirs)}; expected as many")
    return [
        one
        for what in ours[0]
        if all(what in run for run in (*ours, *theirs))
        for one in _of_row(what, [run[what] for run in ours], [run[what] for run in theirs])
    ]


def only_one_has(ours: Iterable[Round], theirs: Iterable[Round]) -> list[str]:
    """The rows that are compared with nothing."""
    everywhere = [set(run) for run in (*ours, *theirs)]
    return sorted(set().union(*everywhere) - set.intersection(*everywhere))


def _of_row(what: str, ours: Sequence[Row], theirs: Sequence[Row]) -> Iterator[Comparison]:
    """Its wall ratio where it has one, and its value."""
    row = ours[0]
    judged: dict[str, Any] = {"exact": not row["timed"], "at_least": row["at_least"]}
    if all(one["ratio"] is not None for one in (*ours, *theirs)):
        figures = [tuple(one["ratio"] for one in side) for side in (ours, theirs)]
        yield Comparison(what, "", *figures, wall_ratio=True, **judged)
        what, judged["at_least"] = (
            f"… {row['unit']}",
            False,
        )  # more of the ratio may be better, but not of the time
    figures = [tuple(one["value"] for one in side) for side in (ours, theirs)]
    yield Comparison(what, row["unit"], *figures, wall_ratio=False, **judged)


def table(comparisons: Sequence[Comparison], *, verdicts: bool) -> str:
    """A line each: both medians, the median quotient with the least and the largest."""
    head = ("what", "ours", "theirs", "ours / theirs", "spread", "")
    return aligned([head, *(_cells(one, verdicts) for one in comparisons)], words=(0, 5))


def _cells(one: Comparison, verdicts: bool) -> tuple[str, ...]:
    quotients = one.quotients
    return (
        one.what,
        f"{median(one.ours):.4g} {one.unit}".rstrip(),
        f"{median(one.theirs):.4g} {one.unit}".rstrip(),
        f"{median(quotients):.3f}" if quotients else "",
        f"{min(quotients):.3f}–{max(quotients):.3f}" if quotients else "",
        one.verdict if verdicts else "",
    )
