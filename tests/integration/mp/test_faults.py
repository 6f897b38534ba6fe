"""The fault matrix: every fault, phase, layout and mode, each combination with its one right outcome.

`make sweep` plays every pair of them, `make faults` all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack

import pytest

from faults.matrix import Cell, Layout, Mode, Nonsense, Right, all_cells, is_fatal, right_of, sensible_cells
from faults.pairs import covering, pairs_of, values_of
from faults.rig import Rig, rigged
from faults.run import wrong_in_the_end, wrong_with

pytestmark = [pytest.mark.timeout(300), pytest.mark.invariant("DIFF-RUNTIME-INV-003")]

COST_OF_A_START = 5.0
"""Of a cell that ends its engine, in cells that don't."""

PAIRS = covering(sensible_cells(), pairs_of, lambda cell: COST_OF_A_START if is_fatal(cell) else 1.0)
VALUES = {
    cell
    for fatal in (False, True)
    for cell in covering((cell for cell in PAIRS if is_fatal(cell) is fatal), values_of)
}


def those(fatal: bool) -> list[object]:
    """The cells to play; those that show only a further pair are a sweep."""
    return [
        pytest.param(cell, id=str(cell), marks=() if cell in VALUES else pytest.mark.sweep)
        for cell in PAIRS
        if is_fatal(cell) is fatal
    ]


class Rigs:
    """The rig of the latest cell, kept while the next one needs the same."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._made: tuple[tuple[Layout, Mode], Rig] | None = None

    def rig_for(self, cell: Cell) -> Rig:
        """One engine for all cells of its layout and mode, which come one after the other."""
        wanted = (cell.layout, cell.mode)
        if self._made is None or self._made[0] != wanted or self._made[1].engine.death is not None:
            self.close()
            self._made = wanted, self._stack.enter_context(rigged(*wanted))
        return self._made[1]

    def close(self) -> None:
        """End the engine."""
        self._made = None
        self._stack.close()


@pytest.fixture(scope="module")
def rigs() -> Iterator[Rigs]:
    made = Rigs()
    yield made
    made.close()


@pytest.mark.parametrize("cell", those(fatal=False))
def test_an_engine_outlives_what_is_one_request_s_affair(rigs: Rigs, cell: Cell) -> None:
    assert not wrong_with(cell, rigs.rig_for(cell))


@pytest.mark.parametrize("cell", those(fatal=True))
def test_what_ends_an_engine_ends_it_with_its_code_and_leaves_nothing(cell: Cell) -> None:
    assert not wrong_in_the_end(cell)


def test_every_combination_has_one_outcome_or_a_reason_why_it_can_not_be() -> None:
    verdicts = [right_of(cell) for cell in all_cells()]
    assert len(verdicts) == 11 * 4 * 4 * 2
    assert all(verdict.why if isinstance(verdict, Nonsense) else verdict.victim for verdict in verdicts)


@pytest.mark.parametrize(
    ("played", "parts_of"), [(VALUES, values_of), (PAIRS, pairs_of)], ids=["value", "pair"]
)
def test_every_one_that_can_be_is_played(
    played: Iterable[Cell], parts_of: Callable[[Cell], set[Hashable]]
) -> None:
    can_be = {part for cell in all_cells() if isinstance(right_of(cell), Right) for part in parts_of(cell)}
    assert {part for cell in played for part in parts_of(cell)} == can_be
