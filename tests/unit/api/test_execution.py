"""A layout that can't be executed is refused at the door."""

from __future__ import annotations

import pytest

from stage_api.errors import Fault
from stage_api.execution import EXECUTABLE, unsupported
from stage_api.manifest import parse_stage
from stage_api.parallelism import AXES
from stage_api.spec import DiffusionStageSpec


def spec(parallelism: dict[str, object]) -> DiffusionStageSpec:
    manifest = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "s"},
        "spec": {"model": {"source": {"embedded": "shapes"}}, "parallelism": parallelism},
    }
    return parse_stage(manifest).spec


def test_one_rank_can_be_executed() -> None:
    assert unsupported(spec({})) == ()


@pytest.mark.parametrize(
    ("parallelism", "path"),
    [
        ({"tensor": 2}, "spec.parallelism.tensor"),
        ({"sequence": {"ulysses": 2}}, "spec.parallelism.sequence.ulysses"),
        ({"sequence": {"ring": 2}}, "spec.parallelism.sequence.ring"),
        ({"pipeline": 2}, "spec.parallelism.pipeline"),
        ({"cfg": 2}, "spec.parallelism.cfg"),
        ({"data": 2}, "spec.parallelism.data"),
    ],
)
def test_a_degree_of_two_is_named_with_its_path(parallelism: dict[str, object], path: str) -> None:
    assert unsupported(spec(parallelism)) == (Fault(path, "1 in this version", "2"),)


def test_all_axes_at_fault_are_named_at_once() -> None:
    assert len(unsupported(spec({"tensor": 2, "cfg": 2, "data": 3}))) == 3


def test_every_axis_has_a_limit() -> None:
    assert tuple(EXECUTABLE) == AXES
