"""When a stage starts without a warm-up: the rule of the contract, case by case."""

from __future__ import annotations

import itertools

import pytest

from stage_api.manifest import parse_stage
from stage_api.offload import skips_warmup
from stage_api.spec import DiffusionStageSpec


def spec(enabled: bool, all_gather: bool, parallelism: dict[str, object]) -> DiffusionStageSpec:
    manifest = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "s"},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "parallelism": parallelism,
            "topology": {"ranksPerPod": 1},
            "offload": {"distributedLayerwise": {"enabled": enabled, "allGather": all_gather}},
        },
    }
    return parse_stage(manifest).spec


ALONE: list[dict[str, object]] = [{}, {"cfg": 2}, {"tensor": 2}, {"pipeline": 2}]
SHARED: list[dict[str, object]] = [
    {"data": 2},
    {"sequence": {"ulysses": 2}},
    {"sequence": {"ring": 2}},
    {"data": 2, "sequence": {"ulysses": 2, "ring": 2}},
]


@pytest.mark.parametrize("parallelism", [*ALONE, *SHARED], ids=str)
@pytest.mark.parametrize(("enabled", "all_gather"), list(itertools.product([False, True], repeat=2)))
def test_warm_up_is_skipped_exactly_where_ranks_would_be_missing_in_a_gather(
    enabled: bool, all_gather: bool, parallelism: dict[str, object]
) -> None:
    expected = enabled and all_gather and parallelism in SHARED
    assert skips_warmup(spec(enabled, all_gather, parallelism)) is expected
