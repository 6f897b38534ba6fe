"""A small set of combinations in which every possible pair of values comes up. Deterministic."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Row = TypeVar("Row", bound=Sequence[Hashable])
Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def pairwise(rows: Iterable[Row], cost: Callable[[Row], float] = lambda row: 1.0) -> list[Row]:
    """Rows out of `rows` that hold each pair of values that any of `rows` holds, in the order of `rows`.

    Greedy: the row with the most new pairs for its cost, the first of several. Then those are left out whose pairs
    the others hold.
    """
    rows = list(rows)
    missing = {pair for row in rows for pair in pairs_of(row)}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & pairs_of(row)) / cost(row))
        chosen.append(best)
        missing -= pairs_of(best)
    for row in sorted(chosen, key=cost, reverse=True):
        others = {pair for one in chosen if one is not row for pair in pairs_of(one)}
        if pairs_of(row) <= others:
            chosen = [one for one in chosen if one is not row]
    return [row for row in rows if row in chosen]


def pairs_of(row: Sequence[Hashable]) -> set[Pair]:
    """Its values, two by two, each with its place."""
    return set(combinations(enumerate(row), 2))
