"""A section of the spec is one file and one entry: a copy of the contract gets one, and it is found everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

FILE = '''
from collections.abc import Mapping
from typing import ClassVar
from pydantic import Field
from stage_api.base import Contract, Limit

class GlowSpec(Contract):
    """How much it glows."""

    strength: int = Field(default=1, ge=1, le=9, description="How much.")
    colour: bool = Field(default=False, description="Whether in colour.")

    executable: ClassVar[Mapping[str, Limit]] = {"strength": 4, "colour": False}
'''
ENTRY = "    glow: Annotated[GlowSpec, Section()] = Field(default=GlowSpec(), description='How it glows.')\n"

PROGRAM = """
import json, sys
from stage_api import crdgen, schema
from stage_api.config import StageConfig, parse
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage
from stage_api.revision import revision_of

def stage(**spec):
    spec = {"model": {"source": {"embedded": "shapes"}}, **spec}
    head = {"apiVersion": "omnistage.io/v1alpha1", "kind": "DiffusionStage", "metadata": {"name": "s"}}
    return {**head, "spec": spec}

def refused(value):
    try:
        parse_stage(value, executable=True)
    except SpecError as error:
        return list(map(str, error.faults))
    return []

plain, asked = parse_stage(stage()), parse_stage(stage(glow={"strength": 3}))
crd = crdgen.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
page = crdgen.generated()[crdgen.REFERENCE_FILE]
config = StageConfig.from_stage(asked).encode()
print(json.dumps({
    "crd": crd["properties"]["spec"]["properties"].get("glow"),
    "page": [line for line in page.splitlines() if "glow" in line],
    "revisions": [revision_of(one) for one in (plain, parse_stage(stage(glow={})), asked)],
    "config": json.loads(config).get("glow"),
    "read": parse(config).glow.strength if "glow" in config else None,
    "refused": refused(stage(glow={"strength": 5, "colour": True})),
    "beside": refused(stage(glow={"colour": True}, replicas=-1)),
    "allowed": refused(stage(glow={"strength": 4})),
}))
"""

TOLD = "class PodSections(Contract):"
KEPT = "class DiffusionStageSpec(PodSections):"


def contract_with(tmp_path: Path, entry: str, where: str) -> dict[str, Any]:
    """What a copy of the contract says that has one more file, and one more entry in the class `where`."""
    shutil.copytree(ROOT / "crds" / "stage_api", tmp_path / "stage_api")
    (tmp_path / "stage_api" / "glow.py").write_text(FILE, encoding="utf-8")
    spec = tmp_path / "stage_api" / "spec.py"
    text = spec.read_text(encoding="utf-8")
    head, found, tail = text.partition(where)
    assert found
    docstring, rest = tail.split("\n\n", 1)
    text = head + found + docstring + "\n\n" + entry + rest
    first = "from stage_api.base import"
    spec.write_text(text.replace(first, f"from stage_api.glow import GlowSpec\n{first}", 1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return contract_with(tmp_path_factory.mktemp("told"), ENTRY, TOLD)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    entry = ENTRY.replace("Section()", "Section(replaces_pods=False)")
    return contract_with(tmp_path_factory.mktemp("kept"), entry, KEPT)


def test_a_new_section_stands_in_the_crd(told: dict[str, Any]) -> None:
    assert told["crd"]["description"] == "How it glows."
    assert told["crd"]["default"] == {}
    assert told["crd"]["properties"]["strength"] == {
        "description": "How much.",
        "type": "integer",
        "default": 1,
        "minimum": 1,
        "maximum": 9,
    }


def test_a_new_section_stands_on_the_reference_page_with_its_limits_and_what_a_change_does(
    told: dict[str, Any],
) -> None:
    page = "\n".join(told["page"])
    assert "| `glow.strength` | an integer 1..9 | `1` | How much. |" in page
    assert "- `glow.strength`: 1..4\n- `glow.colour`: false" in page
    assert "`glow`, `" in page.partition("is another revision")[0].rpartition("Another value in")[2]
    assert "`glow`" in page.partition("Pods are told")[2]


def test_pods_are_told_a_new_section_and_read_it(told: dict[str, Any]) -> None:
    assert told["config"] == {"strength": 3}
    assert told["read"] == 3


def test_only_who_asks_for_a_new_section_gets_another_revision(told: dict[str, Any]) -> None:
    plain, empty, asked = told["revisions"]
    assert plain == empty != asked
    line = (ROOT / "tests" / "unit" / "api" / "known_revisions.jsonl").read_text(encoding="ascii")
    assert f'"revision": "{plain}"' in line


def test_what_a_new_section_cannot_do_yet_is_refused(told: dict[str, Any]) -> None:
    refused = [
        "spec.glow.strength: expected 1..4 in this version, got 5",
        "spec.glow.colour: expected false in this version, got true",
    ]
    assert told["refused"] == refused
    assert told["allowed"] == []
    assert refused[1] in told["beside"]
    assert len(told["beside"]) == 2


def test_a_section_for_the_operator_alone_reaches_no_pod(kept: dict[str, Any]) -> None:
    assert kept["crd"]["properties"]["strength"]
    assert kept["config"] is kept["read"] is None
    assert len(set(kept["revisions"])) == 1
    page = "\n".join(kept["page"])
    assert "`glow`" in page.partition("Any other change, in")[2].partition("is carried out")[0]
    assert "`glow`" not in page.partition("Pods are told")[2]
