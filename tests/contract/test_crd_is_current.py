"""The generated files are what the models say, and the CRD is one that a cluster takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stage_api import crdgen, names
from stage_api.stage import DiffusionStage
from unit.api.bad_stages import laws

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / crdgen.CRD_FILE).read_text(encoding="utf-8"))
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
INT_OR_STRING = "x-kubernetes-int-or-string"
NUMBER_OR_STRING = "number or string"
"""Of no type, since a schema has no other way to take fractions and text: told by its pattern and its minimum."""
# A boolean, an enum or a number is as large as it is; these have no end of their own.
BOUND = {
    "string": "maxLength",
    "array": "maxItems",
    INT_OR_STRING: "maxLength",
    NUMBER_OR_STRING: "maxLength",
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def kind(node: dict[str, Any]) -> str:
    if "type" not in node and {"pattern", "minimum", "x-kubernetes-preserve-unknown-fields"} <= set(node):
        return NUMBER_OR_STRING
    return INT_OR_STRING if node.get(INT_OR_STRING) else str(node.get("type", ""))


FIELDS = [(path, node) for path, node in nodes(SCHEMA) if path.startswith((".spec", ".status"))]


@pytest.mark.parametrize("name", crdgen.generated())
def test_the_committed_file_is_what_the_models_say(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == crdgen.generated()[name], "run: make generate"


def test_check_says_nothing_is_stale() -> None:
    assert crdgen.main(["--check"]) == 0


def test_the_crd_is_small_enough_for_a_client_side_apply() -> None:
    assert (ROOT / crdgen.CRD_FILE).stat().st_size < crdgen.MAX_CRD_BYTES


def test_every_field_has_a_type_and_a_description() -> None:
    assert [path for path, node in FIELDS if not kind(node)] == []
    fields = [(path, node) for path, node in FIELDS if not path.endswith(("[]", "{}"))]
    assert [path for path, node in fields if not node.get("description")] == []


def test_every_string_and_list_is_bounded() -> None:
    loose = [
        path
        for path, node in FIELDS
        if "enum" not in node and (bound := BOUND.get(kind(node))) and bound not in node
    ]
    loose += [path for path, node in FIELDS if "additionalProperties" in node and "maxProperties" not in node]
    assert loose == []


def test_every_number_of_the_spec_is_bounded() -> None:
    loose = [
        path
        for path, node in FIELDS
        if path.startswith(".spec")
        and kind(node) in ("integer", "number")
        and not {"minimum", "maximum"} <= set(node)
    ]
    assert loose == []


@pytest.mark.parametrize(
    "word", ["$ref", "anyOf", "$defs", "title", "const", "x-expected", "x-unread-rules", "propertyNames"]
)
def test_the_schema_is_structural(word: str) -> None:
    assert [path for path, node in nodes(SCHEMA) if word in node] == []


def test_only_maps_are_open() -> None:
    open_fields = {path for path, node in FIELDS if "properties" not in node and kind(node) == "object"}
    assert open_fields == {
        ".spec.podTemplate",
        ".spec.resources.requests",
        ".spec.resources.limits",
        ".spec.monitoring.podMonitor.labels",
        ".spec.networkPolicy.ingressFrom[].namespaceSelector.matchLabels",
        ".spec.networkPolicy.ingressFrom[].podSelector.matchLabels",
    }


def test_every_law_stands_in_the_schema() -> None:
    messages = {
        rule["message"] for _, node in nodes(SCHEMA) for rule in node.get("x-kubernetes-validations", ())
    }
    assert messages == {law.message for law in laws(DiffusionStage) if law.cel is not None}


def test_the_laws_that_the_server_cannot_read_are_few_and_stand_on_the_reference_page() -> None:
    unread = [law.message for law in laws(DiffusionStage) if law.cel is None]
    assert unread == [
        "requests and limits must leave the accelerator out: each rank gets one",
        "must be at most limits.memory, of which it is a part",
    ]
    page = (ROOT / crdgen.REFERENCE_FILE).read_text(encoding="utf-8")
    assert [message for message in unread if message not in page] == []


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
