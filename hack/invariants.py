"""The table of docs/invariants.md and the tests whose marks claim its ids.

    python hack/invariants.py    write into the table which tests carry which id

`tests/contract/test_invariants.py` holds the two to each other.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "invariants.md"
UNBUILT = "not yet built"


def main() -> None:
    claims: dict[str, list[str]] = defaultdict(list)
    for test, ids in marked_tests().items():
        for id_ in ids:
            claims[id_].append(test)
    TABLE.write_text("".join(f"{_with_tests(line, claims)}\n" for line in TABLE.read_text().splitlines()))
    print(f"{TABLE.relative_to(ROOT)}: {len(claims)} invariants are shown by tests")


def _with_tests(line: str, claims: dict[str, list[str]]) -> str:
    row = _cells(line)
    if row is None:
        return line
    shown_by = "<br>".join(f"`{test}`" for test in sorted(claims.get(row[0], []))) or UNBUILT
    return f"| {row[0]} | {row[1]} | {shown_by} |"


def rows() -> list[tuple[str, list[str]]]:
    """(invariant id, the tests that its row names) for every row; no tests for one not yet built."""
    found = [row for line in TABLE.read_text().splitlines() if (row := _cells(line))]
    return [
        (row[0], [] if row[2] == UNBUILT else [test.strip("` ") for test in row[2].split("<br>")])
        for row in found
    ]


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
    main()
