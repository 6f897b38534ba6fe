"""Write the table of values in the chart's README from the comments in its values.yaml.

A comment belongs to the key below it. `--check` compares instead of writing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "omnistage"
BEGIN = "<!-- values, written by hack/chart_values.py -->\n"
END = "<!-- end of values -->\n"
KEY = re.compile(r"( *)([A-Za-z][A-Za-z0-9]*):")


@dataclass(frozen=True)
class Value:
    """One thing that can be set."""

    path: str
    default: Any
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    readme = CHART / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = updated(old, values((CHART / "values.yaml").read_text(encoding="utf-8")))
    if not check:
        readme.write_text(new, encoding="utf-8")
    elif new != old:
        print("helm/omnistage/README.md differs from values.yaml: make generate", file=sys.stderr)
        return 1
    return 0


def values(text: str) -> tuple[Value, ...]:
    """Every commented value, in order. SystemExit names a value that nothing is said about."""
    defaults = yaml.safe_load(text)
    rows = tuple(_commented(text, defaults))
    # What is said about a group, whose members have words of their own, is for readers of values.yaml.
    found = tuple(
        row for row in rows if not any(_within(other.path, row.path) and other != row for other in rows)
    )
    told = {value.path for value in found}
    if silent := [path for path in leaves(defaults) if not any(_within(path, other) for other in told)]:
        raise SystemExit(f"values.yaml says nothing about {', '.join(silent)}")
    return found


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The path of every value that isn't a mapping of others."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def updated(readme: str, rows: tuple[Value, ...]) -> str:
    """The README with the present table in it."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = "".join(f"| `{row.path}` | `{_shown(row.default)}` | {row.text} |\n" for row in rows)
    return f"{head}{BEGIN}| value | default | what it is |\n|---|---|---|\n{table}{END}{tail}"


def _commented(text: str, defaults: dict[str, Any]) -> Iterator[Value]:
    above: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.lstrip("# ").rstrip())
            continue
        if (key := KEY.match(line)) is not None:
            path[len(key[1]) // 2 :] = [key[2]]
            if above:
                yield Value(".".join(path), _at(defaults, path), " ".join(above))
        above = []


def _at(tree: Any, path: list[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _shown(default: Any) -> str:
    return json.dumps(default, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
