"""What can't be executed is refused at the door."""

from __future__ import annotations

import pytest

from stage_api import schema
from stage_api.errors import Fault
from stage_api.execution import executed, unsupported, unsupported_in
from stage_api.manifest import parse_stage
from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec


def spec(parallelism: dict[str, object] | None = None, **sections: object) -> DiffusionStageSpec:
    manifest = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "s"},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "parallelism": parallelism or {},
            "topology": {"ranksPerPod": 1},
            **sections,
        },
    }
    return parse_stage(manifest).spec


@pytest.mark.parametrize("parallelism", [{}, {"cfg": 2}, {"data": 64}, {"cfg": 2, "data": 3}])
def test_copies_and_guidance_on_ranks_of_its_own_can_be_executed(parallelism: dict[str, object]) -> None:
    assert unsupported(spec(parallelism)) == ()


@pytest.mark.parametrize(
    ("parallelism", "path"),
    [
        ({"tensor": 2}, "spec.parallelism.tensor"),
        ({"sequence": {"ulysses": 2}}, "spec.parallelism.sequence.ulysses"),
        ({"sequence": {"ring": 2}}, "spec.parallelism.sequence.ring"),
        ({"pipeline": 2}, "spec.parallelism.pipeline"),
    ],
)
def test_a_degree_that_cannot_be_executed_is_named_with_its_path(
    parallelism: dict[str, object], path: str
) -> None:
    assert unsupported(spec(parallelism)) == (Fault(path, "1 in this version", "2"),)


def test_all_that_is_refused_is_named_at_once() -> None:
    offload = {"distributedLayerwise": {"enabled": True}}
    found = unsupported(spec({"tensor": 2, "pipeline": 2, "data": 3}, offload=offload))
    assert [fault.path for fault in found] == [
        "spec.parallelism.tensor",
        "spec.parallelism.pipeline",
        "spec.offload.distributedLayerwise.enabled",
    ]


def test_spreading_layers_over_ranks_is_refused() -> None:
    refused = (Fault("spec.offload.distributedLayerwise.enabled", "false in this version", "true"),)
    assert unsupported(spec(offload={"distributedLayerwise": {"enabled": True}})) == refused
    assert unsupported(spec(offload={"distributedLayerwise": {"allGather": False}})) == ()


def test_what_is_refused_is_named_beside_a_section_that_cannot_be_read() -> None:
    sections = {"parallelism": {"tensor": 2}, "offload": [1], "engine": 3}
    assert [fault.path for fault in unsupported_in(DiffusionStageSpec, sections)] == [
        "spec.parallelism.tensor"
    ]
    sections = {"parallelism": {"tensor": 0}, "offload": {"distributedLayerwise": {"enabled": True}}}
    assert [fault.path for fault in unsupported_in(DiffusionStageSpec, sections)] == [
        "spec.offload.distributedLayerwise.enabled"
    ]


@pytest.mark.parametrize("sections", [None, [], "spec", 3])
def test_what_holds_no_sections_asks_for_nothing(sections: object) -> None:
    assert unsupported_in(DiffusionStageSpec, sections) == ()


LIMITS = [
    (entry.alias, path, limit)
    for entry in entries(DiffusionStageSpec)
    for path, limit in entry.executable.items()
]


@pytest.mark.parametrize(("section", "path", "limit"), LIMITS)
def test_every_limit_is_of_a_field_and_of_its_own_kind(section: str, path: str, limit: object) -> None:
    field = schema.at(schema.structural(DiffusionStageSpec), (section, *path.split(".")))
    assert field is not None
    kinds = {bool: "boolean", int: "integer", tuple: "string"}
    assert field["type"] == kinds[type(limit)]


@pytest.mark.parametrize(
    ("limit", "said"),
    [(False, "false"), (True, "true"), (1, "1"), (4, "1..4"), (("a",), "a"), (("a", "b"), "one of a, b")],
)
def test_a_limit_says_what_it_leaves(limit: int | tuple[str, ...], said: str) -> None:
    assert executed(limit) == said
