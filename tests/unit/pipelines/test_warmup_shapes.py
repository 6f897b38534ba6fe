"""A stage warms up with what its model can draw, or says which shape it can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_api.spec import WarmupSpec
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.records import RECORDS, SHAPES
from stage_runtime.pipelines.warmup_shapes import warmup_requests


def model_of(record=SHAPES) -> ResolvedModel:
    return ResolvedModel(record=record, model_index={}, path=Path("/nowhere"), defaults=record.defaults)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_without_shapes_one_request_of_the_models_own_size_warms_up(record) -> None:
    ((request,),) = warmup_requests(model_of(record), ())
    assert request.steps == 2
    if "width" in request.arguments:
        assert request.arguments["width"] == record.defaults.width


def test_each_shape_is_a_group_of_requests_that_may_run_together() -> None:
    shapes = (
        WarmupSpec(width=64, height=32, batch=3),
        WarmupSpec(width=128, height=128, num_inference_steps=4),
    )
    first, second = warmup_requests(model_of(), shapes)
    assert [request.arguments["height"] for request in first] == [32, 32, 32]
    assert len({request.key for request in first}) == 1
    assert [request.steps for request in second] == [4]
    ids = [request.request_id for request in (*first, *second)]
    assert len(set(ids)) == 4


def test_every_shape_that_cannot_be_drawn_is_named() -> None:
    shapes = (
        WarmupSpec(width=60, height=8192),
        WarmupSpec(width=64, height=64),
        WarmupSpec(width=64, height=64, num_inference_steps=1000),
    )
    with pytest.raises(SpecError) as refused:
        warmup_requests(model_of(), shapes)
    assert [fault.path for fault in refused.value.faults] == [
        "spec.engine.warmup[0].width",
        "spec.engine.warmup[0].height",
    ]
    assert "a multiple of 8 from 8 to 256 (nearest: 56 or 64) (of shapes)" in str(refused.value)
