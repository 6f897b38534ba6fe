"""Keep files and functions short: at most 400 lines a file, 60 a function.

Names each offender with its length. The layout test asks the same questions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def main() -> int:
    faults = [fault for path in tracked_python_files(ROOT) for fault in oversized(path)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def tracked_python_files(root: Path) -> list[Path]:
    """Every Python file that git knows in `root`, as absolute paths."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", "*.py"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    paths = [root / name for name in listing.split("\0") if name]
    return [path for path in paths if path.exists()]  # deleted but not yet committed


def oversized(path: Path) -> Iterator[str]:
    """One sentence for each thing in `path` that is too long."""
    source = path.read_text()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if (lines := len(source.splitlines())) > MAX_FILE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit(main())
