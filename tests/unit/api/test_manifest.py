"""From text to stages, or to all that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api import names
from stage_api.errors import SpecError
from stage_api.manifest import load_manifest, parse_manifest, parse_stage

STAGE = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {name: %s}
spec: {model: {source: {embedded: shapes}}}
"""
SERVICE = "\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"


def messages(text: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse_manifest(text)
    return [str(fault) for fault in raised.value.faults]


def test_the_stages_of_all_documents_come_in_order() -> None:
    stages = parse_manifest("---".join([STAGE % "a", SERVICE, STAGE % "b"]))
    assert [stage.metadata.name for stage in stages] == ["a", "b"]


def test_a_list_as_kubectl_prints_it_is_read() -> None:
    items = "".join(
        f"- {line}" if i == 0 else f"  {line}"
        for i, line in enumerate((STAGE % "a").lstrip().splitlines(True))
    )
    (stage,) = parse_manifest(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    assert stage.metadata.name == "a"


def test_the_faults_of_all_documents_come_at_once_and_say_which() -> None:
    bad = STAGE.replace("shapes", "squares")
    assert messages("---".join([bad % "a", STAGE % "b", bad % "c"])) == [
        'document 1: spec.model.source.embedded: expected one of shapes, digits, got "squares"',
        'document 3: spec.model.source.embedded: expected one of shapes, digits, got "squares"',
    ]


def test_a_repeated_key_does_not_hide_what_else_is_wrong() -> None:
    assert messages((STAGE % "a").replace("shapes}", "squares}, source: {embedded: circles}")) == [
        "spec.model.source: expected each key once, got it again at line 5",
        'spec.model.source.embedded: expected one of shapes, digits, got "circles"',
    ]


def test_two_stages_of_one_name_are_refused() -> None:
    assert messages("---".join([STAGE % "a", STAGE % "a"])) == [
        'metadata.name: expected each stage once, got "default/a"'
    ]


@pytest.mark.parametrize("text", ["", "\n---\n---\n", SERVICE])
def test_a_text_without_a_stage_is_refused(text: str) -> None:
    assert messages(text) == ["expected a DiffusionStage of omnistage.io/v1alpha1, got none"]


@pytest.mark.parametrize(
    "text", ["hello", "[]", "3", "{}", "kind: DiffusionStage", b"\x00", "apiVersion: omnistage.io/v2"]
)
def test_what_is_no_stage_is_refused_with_a_reason(text: str | bytes) -> None:
    assert messages(text)


def test_a_misspelt_kind_of_our_group_is_not_passed_over() -> None:
    assert messages((STAGE % "a").replace("DiffusionStage", "DifusionStage")) == [
        'kind: expected DiffusionStage, got "DifusionStage"'
    ]


def test_another_version_of_the_api_is_refused() -> None:
    assert messages((STAGE % "a").replace("v1alpha1", "v1")) == [
        'apiVersion: expected omnistage.io/v1alpha1, got "omnistage.io/v1"'
    ]


def test_metadata_and_status_that_the_api_server_wrote_are_read() -> None:
    stored: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "a",
            "namespace": "art",
            "uid": "0f",
            "generation": 2,
            "resourceVersion": "77",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"model": {"source": {"embedded": "shapes"}}},
        "status": {"phase": "Ready", "ready": "1/1", "writtenByALaterVersion": 1},
    }
    stage = parse_stage(stored)
    assert (stage.metadata.namespace, stage.metadata.generation) == ("art", 2)
    assert stage.status is not None
    assert stage.status.ready == "1/1"


def test_null_means_absent_as_it_does_for_the_api_server() -> None:
    with_nulls = STAGE.replace("spec: {", "spec: {replicas: null, engine: {mode: ~}, topology: ,")
    assert parse_manifest(with_nulls % "a") == parse_manifest(STAGE % "a")


def test_a_whole_number_may_have_a_point() -> None:
    (stage,) = parse_manifest((STAGE % "a").replace("spec: {", "spec: {replicas: 2.0,"))
    assert stage.spec.replicas == 2


def test_the_served_name_is_the_stages_own_unless_the_model_has_one() -> None:
    named = STAGE.replace("model: {", "model: {name: Org/My.Model_v1.0-,")
    assert parse_manifest(STAGE % "a")[0].served_name == "a"
    assert parse_manifest(named % "a")[0].served_name == "Org/My.Model_v1.0-"


def test_a_file_that_is_not_there_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected a readable file, got No such file"):
        load_manifest(tmp_path / "stage.yaml")


def test_every_example_is_sound() -> None:
    examples = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
    assert examples
    assert all(load_manifest(path) for path in examples)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SECTIONS = st.dictionaries(
    st.sampled_from(["replicas", "model", "engine", "parallelism", "topology", "startup", "drain", "x"]), JSON
)


@given(
    JSON
    | st.fixed_dictionaries({"kind": st.just("DiffusionStage"), "metadata": JSON, "spec": SECTIONS | JSON})
)
def test_any_value_gives_a_stage_or_a_spec_error(value: object) -> None:
    with pytest.raises(SpecError) as raised:
        parse_stage(value)
    assert raised.value.faults


@pytest.mark.parametrize("value", [{1: 2}, {"spec": {"a": object()}}, {"a": b"x"}, object()])
def test_a_value_that_json_can_not_hold_is_refused(value: object) -> None:
    with pytest.raises(SpecError):
        parse_stage(value)


def test_a_name_that_is_no_text_is_a_fault_like_any_other() -> None:
    with pytest.raises(SpecError, match="names of fields in Unicode"):
        parse_stage(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": "a", "namespace": "b"},
                "spec": {"model": {"source": {"embedded": "shapes"}}, "podTemplate": {"\ud800": 1}},
            }
        )
