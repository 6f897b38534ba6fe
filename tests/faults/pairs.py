"""A small set of combinations in which every possible value, or pair of values, comes up. Deterministic."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Row = TypeVar("Row", bound=Sequence[Hashable])
Value = tuple[int, Hashable]
Pair = tuple[Value, Value]


def covering(
    rows: Iterable[Row],
    parts_of: Callable[[Row], set[Hashable]],
    cost: Callable[[Row], float] = lambda row: 1.0,
) -> list[Row]:
    """Rows out of `rows` that hold each part that any of `rows` holds, in the order of `rows`.

    Greedy: the row with the most new parts for its cost, the first of several. Then those are left out whose parts
    the others hold.
    """
    rows = list(rows)
    missing = {part for row in rows for part in parts_of(row)}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & parts_of(row)) / cost(row))
        chosen.append(best)
        missing -= parts_of(best)
    for row in sorted(chosen, key=cost, reverse=True):
        others = {part for one in chosen if one is not row for part in parts_of(one)}
        if parts_of(row) <= others:
            chosen = [one for one in chosen if one is not row]
    return [row for row in rows if row in chosen]


def values_of(row: Sequence[Hashable]) -> set[Value]:
    """Its values, each with its place."""
    return set(enumerate(row))


def pairs_of(row: Sequence[Hashable]) -> set[Pair]:
    """The same, two by two."""
    return set(combinations(enumerate(row), 2))
