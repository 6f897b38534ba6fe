"""The fault matrix: every pair of fault, phase, layout and mode, each combination with its one right outcome.

`make faults` plays all combinations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.matrix import Cell, Nonsense, Right, all_cells, is_fatal, right_of, sensible_cells
from faults.pairs import pairs_of, pairwise
from faults.rig import Rig, rigged
from faults.run import wrong_in_the_end, wrong_with

pytestmark = [pytest.mark.timeout(300), pytest.mark.invariant("DIFF-RUNTIME-INV-003")]

COST_OF_A_START = 5.0
"""Of a cell that ends its engine, in cells that don't."""

CHOSEN = pairwise(sensible_cells(), lambda cell: COST_OF_A_START if is_fatal(cell) else 1.0)
SURVIVED = [cell for cell in CHOSEN if not is_fatal(cell)]
FATAL = [cell for cell in CHOSEN if is_fatal(cell)]

# NB: pytest keeps a fixture for the next test only if its parameter is the same object.
ENGINES = {(cell.layout, cell.mode): (cell.layout, cell.mode) for cell in SURVIVED}


@pytest.fixture(scope="module")
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One engine for all cells of its layout and mode."""
    with rigged(*request.param) as made:
        yield made


@pytest.mark.parametrize(
    ("rig", "cell"),
    [(ENGINES[cell.layout, cell.mode], cell) for cell in SURVIVED],
    indirect=["rig"],
    ids=map(str, SURVIVED),
)
def test_an_engine_outlives_what_is_one_request_s_affair(rig: Rig, cell: Cell) -> None:
    assert not wrong_with(cell, rig)


@pytest.mark.parametrize("cell", FATAL, ids=str)
def test_what_ends_an_engine_ends_it_with_its_code_and_leaves_nothing(cell: Cell) -> None:
    assert not wrong_in_the_end(cell)


def test_every_combination_has_one_outcome_or_a_reason_why_it_can_not_be() -> None:
    verdicts = [right_of(cell) for cell in all_cells()]
    assert len(verdicts) == 11 * 4 * 4 * 2
    assert all(verdict.why if isinstance(verdict, Nonsense) else verdict.victim for verdict in verdicts)


def test_every_pair_that_can_be_is_played() -> None:
    can_be = {pair for cell in all_cells() if isinstance(right_of(cell), Right) for pair in pairs_of(cell)}
    assert {pair for cell in CHOSEN for pair in pairs_of(cell)} == can_be
