"""The table of manifests that nobody may accept, on the Python side."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api.errors import SpecError
from stage_api.manifest import parse_stage
from stage_api.stage import DiffusionStage
from unit.api.bad_stages import CASES, laws, manifest


def test_the_manifest_that_the_cases_start_from_is_sound() -> None:
    assert parse_stage(manifest({})).metadata.name == "shapes"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_every_fault_is_named_with_its_path(case: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as raised:
        parse_stage(manifest(case))
    assert [str(fault) for fault in raised.value.faults] == case["faults"]


def test_every_rule_of_the_crd_has_a_case_that_breaks_it() -> None:
    told = {case.get("server") or case["operator"] for case in CASES}
    unbroken = [law.message for law in laws(DiffusionStage) if not any(text in law.message for text in told)]
    assert unbroken == []
