"""Plays the whole fault matrix and prints a table: `python tests/faults/run.py [WORDS …]`, the words choose cells.

Exit 1 when any outcome is not the right one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

if __name__ == "__main__":
    _root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(_root / one) for one in ("tests", "crds", "worker", "models/shapes")]

from faults.inject import differs, play
from faults.matrix import Cell, Nonsense, Right, all_cells, is_fatal, right_of, sensible_cells
from faults.pod import is_for_pod, play_pod
from faults.rig import Rig, rigged


def played(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str, float]]:
    """Each cell with what is wrong with its outcome, and its seconds. One engine for all that leave it alive."""
    for (fatal, layout, mode), group in groupby(cells, lambda cell: (is_fatal(cell), cell.layout, cell.mode)):
        if fatal:
            for cell in group:
                began_s = time.monotonic()
                yield cell, wrong_in_the_end(cell), time.monotonic() - began_s
            continue
        with rigged(layout, mode) as rig:
            for cell in group:
                began_s = time.monotonic()
                yield cell, wrong_with(cell, rig), time.monotonic() - began_s


def wrong_with(cell: Cell, rig: Rig) -> str:
    """What is not right about a cell's outcome; "" when it is."""
    right = right_of(cell)
    assert isinstance(right, Right), right
    return differs(right, play(cell, rig))


def wrong_in_the_end(cell: Cell) -> str:
    """The same of a cell that needs an engine, or a process, of its own."""
    if is_for_pod(cell):
        right = right_of(cell)
        assert isinstance(right, Right), right
        return differs(right, play_pod(cell))
    with rigged(cell.layout, cell.mode) as rig:
        return wrong_with(cell, rig)


def main(words: Sequence[str]) -> int:
    cells = [cell for cell in sensible_cells() if all(word in str(cell) for word in words)]
    began_s, bad = time.monotonic(), 0
    for cell, wrong, seconds in _safely(cells):
        bad += bool(wrong)
        right = right_of(cell)
        assert isinstance(right, Right)
        outcome = f"{right.victim}, engine {right.engine}"
        print(f"{cell!s:62} {outcome:32} {seconds:6.1f} s  {wrong or 'right'}", flush=True)
    if not words:
        _print_nonsense()
    print(f"{len(cells)} combinations in {time.monotonic() - began_s:.0f} s, {bad} wrong")
    return 1 if bad else 0


def _safely(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str, float]]:
    """As `played`; a group that breaks off is told as wrong, and the others are still played."""
    for _, group in groupby(cells, lambda cell: (is_fatal(cell) and cell, cell.layout, cell.mode)):
        left = list(group)
        try:
            for done in played(list(left)):
                left.remove(done[0])
                yield done
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no right outcome
            yield from ((cell, f"{type(error).__name__}: {error}", 0.0) for cell in left)


def _print_nonsense() -> None:
    for cell in all_cells():
        if isinstance(verdict := right_of(cell), Nonsense):
            print(f"{cell!s:62} can't be: {verdict.why}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
