"""A null counts as left out, wherever something may be left out."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_api.config import StageConfig
from stage_api.errors import SpecError
from stage_api.manifest import parse_manifest, parse_stage
from stage_api.revision import revision_of
from stage_api.stage import DiffusionStage
from stage_operator.manifests.template import overlay
from unit.api.nulls import MAPS, nulled, optional, put

SOURCE = {"embedded": "shapes"}
BARE: dict[str, Any] = {"model": {"source": SOURCE}}


def stage(spec: dict[str, Any], **metadata: Any) -> DiffusionStage:
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "flux", **metadata}}
    return parse_stage({**head, "spec": spec})


def outcome(spec: dict[str, Any]) -> object:
    """The spec as it is understood, or what is wrong with it."""
    try:
        return stage(spec).spec
    except SpecError as error:
        return error.faults


@pytest.mark.parametrize("path", [*optional(), *MAPS[:3]], ids=".".join)
def test_a_null_is_as_if_the_field_were_not_there(path: tuple[str, ...]) -> None:
    with_null = put(BARE, path, None)
    *above, last = path
    section = with_null
    for name in above:
        section = section[name]
    rest = {name: value for name, value in section.items() if name != last}
    assert outcome(with_null) == outcome(put(BARE, tuple(above), rest) if above else rest)


def test_nulls_everywhere_are_a_stage_of_defaults() -> None:
    spec, told = nulled(SOURCE)
    assert told > 50
    made = stage(spec)
    assert revision_of(made) == revision_of(stage(BARE))
    assert StageConfig.from_stage(made).encode() == StageConfig.from_stage(stage(BARE)).encode()


@pytest.mark.parametrize("said", ["", " null", " ~", " {}"])
def test_a_section_of_which_nothing_is_said_may_have_its_key(said: str) -> None:
    keys = [path[0] for path in optional() if len(path) == 1 and path[0] not in ("replicas", "suspend")]
    text = f"apiVersion: {names.API_VERSION}\nkind: {names.KIND}\nmetadata: {{name: flux, labels:{said}}}\n"
    text += "spec:\n  model: {source: {embedded: shapes}}\n" + "".join(f"  {key}:{said}\n" for key in keys)
    text = text.replace("labels:}", "labels: }")
    (made,) = parse_manifest(text)
    assert made.spec == stage(BARE).spec


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_a_null_in_the_metadata_is_left_out(field: str) -> None:
    assert getattr(stage(BARE, **{field: {"a": None, "b": "c"}}).metadata, field) == {"b": "c"}
    assert getattr(stage(BARE, **{field: None}).metadata, field) == {}


NULLS = [
    {"metadata": None},
    {"metadata": {"labels": None, "annotations": {"a": None}}},
    {"spec": {"containers": None, "volumes": None, "imagePullSecrets": None, "initContainers": None}},
    {"spec": {"hostname": None, "restartPolicy": None, "terminationGracePeriodSeconds": None}},
    {
        "spec": {
            "containers": [{"name": "stage", "image": None, "resources": None, "env": None, "args": None}]
        }
    },
]


@pytest.mark.parametrize("template", NULLS)
def test_a_null_in_a_pod_template_says_nothing(template: dict[str, Any]) -> None:
    made = stage({**BARE, "podTemplate": template})
    pod = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"hostname": "h", "containers": [{"name": "stage", "image": "i"}]},
    }
    assert overlay(pod, made.spec.pod_template) == pod


@pytest.mark.parametrize("path", [("model",), ("model", "source"), ("engine", "warmup", "width")])
def test_what_is_demanded_is_not_given_by_a_null(path: tuple[str, ...]) -> None:
    spec = (
        {**BARE, "engine": {"warmup": [{"width": None, "height": 64}]}}
        if len(path) == 3
        else put(BARE, path, None)
    )
    with pytest.raises(SpecError, match="got nothing"):
        stage(spec)
