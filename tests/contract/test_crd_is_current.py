"""The generated files are what the models say, and the CRD is one that a cluster takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stage_api import crdgen, names
from stage_api.stage import DiffusionStage

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / crdgen.CRD_FILE).read_text(encoding="utf-8"))
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
# A boolean, an enum or a number is as large as it is; these have no end of their own.
BOUND = {"string": "maxLength", "array": "maxItems"}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


FIELDS = [(path, node) for path, node in nodes(SCHEMA) if path.startswith((".spec", ".status"))]


@pytest.mark.parametrize("name", crdgen.generated())
def test_the_committed_file_is_what_the_models_say(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == crdgen.generated()[name], "run: make generate"


def test_check_says_nothing_is_stale() -> None:
    assert crdgen.main(["--check"]) == 0


def test_the_crd_is_small_enough_for_a_client_side_apply() -> None:
    assert (ROOT / crdgen.CRD_FILE).stat().st_size < crdgen.MAX_CRD_BYTES


def test_every_field_has_a_type_and_a_description() -> None:
    assert [path for path, node in FIELDS if not (node.get("type") and node.get("description"))] == []


def test_every_string_and_list_is_bounded() -> None:
    loose = [
        path
        for path, node in FIELDS
        if "enum" not in node and (bound := BOUND.get(node["type"])) and bound not in node
    ]
    assert loose == []


def test_every_number_of_the_spec_is_bounded() -> None:
    loose = [
        path
        for path, node in FIELDS
        if path.startswith(".spec")
        and node["type"] in ("integer", "number")
        and not {"minimum", "maximum"} <= set(node)
    ]
    assert loose == []


@pytest.mark.parametrize(
    "word", ["$ref", "anyOf", "$defs", "title", "const", "x-expected", "additionalProperties"]
)
def test_the_schema_is_structural(word: str) -> None:
    assert [path for path, node in nodes(SCHEMA) if word in node] == []


def test_every_law_stands_in_the_schema() -> None:
    messages = [
        rule["message"] for _, node in nodes(SCHEMA) for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(messages) == len(set(messages)) == 10


def test_conditions_are_a_map_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_the_printer_columns_and_the_scale_show_fields_that_exist() -> None:
    known = {path for path, _ in FIELDS} | {".metadata.creationTimestamp"}
    shown = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]]
    assert set(shown) | set(VERSION["subresources"]["scale"].values()) <= known


def test_the_names_are_those_of_the_contract() -> None:
    assert CRD["metadata"]["name"] == names.CRD_NAME
    fields = DiffusionStage.model_json_schema(by_alias=True)["properties"]
    assert (fields["apiVersion"]["const"], fields["kind"]["const"]) == (names.API_VERSION, names.KIND)
