"""The table of manifests that nobody may accept, on the Python side."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from stage_api.base import Contract, Law
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage
from stage_api.stage import DiffusionStage

TABLE = yaml.safe_load((Path(__file__).parent / "bad_stages.yaml").read_text())
SOUND = yaml.safe_load((Path(__file__).parents[3] / "examples" / "shapes.yaml").read_text())


def manifest(case: dict[str, Any]) -> dict[str, Any]:
    """The embedded model's stage with nothing but its source, changed as the case says."""
    made = copy.deepcopy({**SOUND, "spec": {"model": SOUND["spec"]["model"]}})
    for path in case.get("drop", ()):
        *above, last = path.split(".")
        del section(made, above)[last]
    for path, value in case.get("set", {}).items():
        *above, last = path.split(".")
        section(made, above)[last] = value
    return made


def section(node: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        node = node.setdefault(name, {})
    return node


def test_the_manifest_that_the_cases_start_from_is_sound() -> None:
    assert parse_stage(manifest({})).metadata.name == "shapes"


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case["case"])
def test_every_fault_is_named_with_its_path(case: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as raised:
        parse_stage(manifest(case))
    assert [str(fault) for fault in raised.value.faults] == case["faults"]


def test_every_rule_of_the_crd_has_a_case_that_breaks_it() -> None:
    told = {case["server"] for case in TABLE}
    unbroken = [law.message for law in laws(DiffusionStage) if not any(text in law.message for text in told)]
    assert unbroken == []


def laws(model: type[Contract]) -> Iterator[Law]:
    yield from model.laws
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Contract):
                yield from laws(kind)
