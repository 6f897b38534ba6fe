"""A capability is one folder and one line: whatever else a rank is made of doesn't know it by name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from check_sizes import ROOT

RUNTIME = ROOT / "worker" / "stage_runtime"
FEATURES = sorted(path.name for path in (RUNTIME / "features").iterdir() if (path / "__init__.py").exists())
ROOM = ("assemble_rank.py", "features/guidance/")
AXIS = re.compile(r"(?<![a-z])cfg(?![a-z])", re.IGNORECASE)
OF_RECORDS = re.compile(r"true_cfg_scale|cfg_normalization|cfg_truncation")
"""Arguments of pipelines, which records name."""


def modules() -> list[Path]:
    return sorted(RUNTIME.rglob("*.py"))


def outside(path: Path, *rooms: str) -> bool:
    place = path.relative_to(RUNTIME).as_posix()
    return not any(place == room or place.startswith(room) for room in rooms)


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def axis_in(source: str) -> list[str]:
    """Words of the code, its texts and its comments that name the axis of guidance."""
    words = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)]
    return [word for word in words if AXIS.search(OF_RECORDS.sub("", word))]


def test_there_are_features() -> None:
    assert {"guidance", "vae"} <= set(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_nobody_but_the_composition_root_imports_a_feature(feature: str) -> None:
    package = f"stage_runtime.features.{feature}"
    others = [path for path in modules() if outside(path, "assemble_rank.py", f"features/{feature}/")]
    assert [path for path in others if any(name.startswith(package) for name in imported(path))] == []


def test_each_feature_is_named_once_in_the_composition_root() -> None:
    from stage_runtime.assemble_rank import FEATURES as ORDERED

    assert {kind.__module__.split(".")[2] for kind in ORDERED} == set(FEATURES)
    assert len(set(ORDERED)) == len(ORDERED)


def test_the_axis_of_guidance_is_named_by_its_feature_alone() -> None:
    named = {path: axis_in(path.read_text()) for path in modules() if outside(path, *ROOM)}
    assert {path: words for path, words in named.items() if words} == {}


@pytest.mark.parametrize("source", ["x.cfg", "'cfg'", "# of cfg", "CFG = 2", "cfg_target()"])
def test_the_axis_is_noticed_wherever_it_is_named(source: str) -> None:
    assert axis_in(source)


def test_the_runner_has_no_arrow_to_a_feature_nor_up() -> None:
    for path in (RUNTIME / "runner").glob("*.py"):
        assert not [name for name in imported(path) if name.startswith("stage_runtime.features")], path
