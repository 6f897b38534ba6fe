"""The table of docs/invariants.md and the tests whose marks claim its ids.

    python hack/invariants.py       write into the table how many tests carry each id
    python hack/invariants.py ID    list the tests that carry it

`tests/contract/test_invariants.py` holds the two to each other.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "invariants.md"


def main(ids: list[str]) -> None:
    claims = tests_of_ids()
    if ids:
        print("\n".join(test for id_ in ids for test in claims.get(id_, [])))
        return
    TABLE.write_text("".join(f"{_counted(line, claims)}\n" for line in TABLE.read_text().splitlines()))
    print(f"{TABLE.relative_to(ROOT)}: {len(claims)} invariants are shown by tests")


def tests_of_ids() -> dict[str, list[str]]:
    """Invariant id -> the tests that carry it, in order."""
    claims: dict[str, list[str]] = defaultdict(list)
    for test, ids in sorted(marked_tests().items()):
        for id_ in ids:
            claims[id_].append(test)
    return claims


def _counted(line: str, claims: dict[str, list[str]]) -> str:
    row = _cells(line)
    return line if row is None else f"| {row[0]} | {row[1]} | {len(claims.get(row[0], []))} |"


def rows() -> list[tuple[str, int]]:
    """(invariant id, how many tests its row counts) for every row."""
    return [(row[0], int(row[2])) for line in TABLE.read_text().splitlines() if (row := _cells(line))]


def _cells(line: str) -> tuple[str, str, str] | None:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return (cells[0], cells[1], cells[-1]) if line.startswith("|") and "-INV-" in cells[0] else None


def marked_tests() -> dict[str, set[str]]:
    """Test ("tests/…/test_x.py::test_y") -> the invariant ids that its marks name; every test is there."""
    marks: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text(), filename=str(path))
        shared = {id_ for node in module.body if _is_pytestmark(node) for id_ in _invariant_ids(node)}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                own = {id_ for decorator in node.decorator_list for id_ in _invariant_ids(decorator)}
                marks[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = shared | own
    return marks


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _invariant_ids(tree: ast.AST) -> list[str]:
    """The arguments of every `invariant(...)` mark inside `tree`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func).split(".")[-1] == "invariant"]
    return [ast.literal_eval(argument) for call in marks for argument in call.args]


if __name__ == "__main__":
    main(sys.argv[1:])
