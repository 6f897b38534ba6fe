"""What two names of one meaning do: they agree, or each is what the pipeline calls so."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.request import Request
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import PipelineRecord, ResolvedModel, Wishes
from stage_runtime.pipelines.records import FLUX, FLUX_UNGUIDED, QWEN_IMAGE, SHAPES, STABLE_AUDIO


def build(record: PipelineRecord, **wishes: object) -> list[Request]:
    model = ResolvedModel(record=record, model_index={}, path=Path("/model"), defaults=record.defaults)
    return build_requests(model, Wishes(**({"prompt": "a red circle"} | wishes)), request_id="r")


def refusal(record: PipelineRecord, **wishes: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        build(record, **wishes)
    return refused.value


def test_two_names_for_one_wish_must_agree() -> None:
    assert (
        build(STABLE_AUDIO, seconds=2.0, extra={"audio_end_in_s": 2.0})[0].arguments["audio_end_in_s"] == 2.0
    )
    assert refusal(STABLE_AUDIO, seconds=2.0, extra={"audio_end_in_s": 3.0}).field == "audio_end_in_s"


@pytest.mark.parametrize("record", [QWEN_IMAGE, SHAPES, FLUX, FLUX_UNGUIDED], ids=lambda record: record.name)
def test_both_scales_of_a_pipeline_that_has_two_are_taken_each_as_the_pipeline_calls_it(
    record: PipelineRecord,
) -> None:
    (request,) = build(record, guidance_scale=1.0, extra={"true_cfg_scale": 4.0})
    assert (request.arguments["guidance_scale"], request.arguments["true_cfg_scale"]) == (1.0, 4.0)
    refused = refusal(record, guidance_scale=500.0, extra={"true_cfg_scale": 4.0})
    assert refused.field == "guidance_scale"


def test_one_scale_alone_is_guidance_whatever_it_is_called() -> None:
    for wishes in ({"guidance_scale": 3.0}, {"extra": {"true_cfg_scale": 3.0}}):
        (request,) = build(QWEN_IMAGE, **wishes)
        assert request.arguments["true_cfg_scale"] == 3.0
        assert "guidance_scale" not in request.arguments
