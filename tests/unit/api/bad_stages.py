"""The table of manifests that nobody may accept, and the manifest of each case."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml

from stage_api.base import Contract, Law

ROOT = Path(__file__).parents[3]
CASES = yaml.safe_load((Path(__file__).parent / "bad_stages.yaml").read_text())
SHAPES = yaml.safe_load((ROOT / "examples" / "shapes.yaml").read_text())


def manifest(case: dict[str, Any]) -> dict[str, Any]:
    """The embedded model's stage with nothing but its source, changed as the case says."""
    made = copy.deepcopy({**SHAPES, "spec": {"model": SHAPES["spec"]["model"]}})
    for path in case.get("drop", ()):
        *above, last = path.split(".")
        del _section(made, above)[last]
    for path, value in case.get("set", {}).items():
        *above, last = path.split(".")
        _section(made, above)[last] = value
    return made


def _section(node: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        node = node.setdefault(name, {})
    return node


def laws(model: type[Contract]) -> Iterator[Law]:
    """Every law of a model and of what is in it."""
    yield from model.laws
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Contract):
                yield from laws(kind)
