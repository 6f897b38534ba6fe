"""Every invariant of docs/invariants.md is known, and those that are built have tests that say so."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "invariants.md"
FAMILIES = {"DIFF-RUNTIME": 5, "DIFF-MODEL": 4, "BATCH": 4, "PARALLEL": 4, "OFFLOAD": 4}
IDS = [f"{family}-INV-{n:03}" for family, count in FAMILIES.items() for n in range(1, count + 1)]
UNBUILT = "not yet built"


@cache
def rows() -> list[tuple[str, str]]:
    """(invariant id, last cell) of every row."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TABLE.read_text().splitlines()
        if line.startswith("|")
    ]
    return [(row[0], row[-1]) for row in cells if "-INV-" in row[0]]


def shown_by(invariant_id: str) -> str:
    return dict(rows()).get(invariant_id, UNBUILT)


def named_tests(cell: str) -> list[str]:
    return [part.strip().strip("`") for part in cell.split("<br>")]


@cache
def marked_tests() -> dict[str, set[str]]:
    """Test ("tests/…/test_x.py::test_y") -> the invariant ids that its marks name."""
    marks: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text(), filename=str(path))
        shared = {id_ for node in module.body if is_pytestmark(node) for id_ in invariant_ids(node)}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                own = {id_ for decorator in node.decorator_list for id_ in invariant_ids(decorator)}
                marks[f"{path.relative_to(ROOT)}::{node.name}"] |= shared | own
    return marks


def is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def invariant_ids(tree: ast.AST) -> list[str]:
    """The arguments of every `invariant(...)` mark inside `tree`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func).split(".")[-1] == "invariant"]
    return [ast.literal_eval(argument) for call in marks for argument in call.args]


def test_the_table_has_every_invariant_once_and_no_other() -> None:
    assert [invariant_id for invariant_id, _ in rows()] == IDS


def test_no_test_names_an_unknown_invariant() -> None:
    unknown = {test: ids - set(IDS) for test, ids in marked_tests().items() if ids - set(IDS)}
    assert unknown == {}


@pytest.mark.parametrize("invariant_id", IDS)
def test_a_built_invariant_names_tests_that_exist_and_carry_its_mark(invariant_id: str) -> None:
    cell = shown_by(invariant_id)
    if cell == UNBUILT:
        return
    marks = marked_tests()
    for test in named_tests(cell):
        assert test in marks, f"{invariant_id} names {test}, which does not exist"
        assert invariant_id in marks[test], f"{test} lacks @pytest.mark.invariant({invariant_id!r})"


def test_an_invariant_that_tests_claim_is_not_called_unbuilt() -> None:
    claimed = {id_ for ids in marked_tests().values() for id_ in ids}
    assert [id_ for id_ in IDS if id_ in claimed and shown_by(id_) == UNBUILT] == []
