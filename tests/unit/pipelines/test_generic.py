"""A pipeline without a record is served from what its arguments are called, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_runtime.core.errors import InvalidRequest, ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.arguments import build_requests, small_arguments
from stage_runtime.pipelines.call_signature import REQUIRED, CallSignature, read_call_signature
from stage_runtime.pipelines.contract import FieldClass, ResolvedModel, Wishes
from stage_runtime.pipelines.generic import record_for

PLAIN = {"prompt": None, "num_inference_steps": 25, "generator": None}


def signature(**parameters: object) -> CallSignature:
    return CallSignature("SomePipeline", PLAIN | parameters)


def test_arguments_of_known_meaning_are_open_and_all_others_unsupported() -> None:
    record = record_for(signature(width=512, height=None, guidance_scale=7.5, cleverness=1))
    assert record.classes["width"] is FieldClass.SHARED
    assert record.classes["guidance_scale"] is FieldClass.PER_REQUEST
    assert record.classes["generator"] is FieldClass.ENGINE
    assert record.classes["cleverness"] is FieldClass.UNSUPPORTED


def test_defaults_are_the_pipelines_own() -> None:
    defaults = record_for(signature(width=512, height=None, guidance_scale=7.5)).defaults
    assert (defaults.width, defaults.height) == (512, None)
    assert (defaults.num_inference_steps, defaults.guidance_scale) == (25, 7.5)


@pytest.mark.parametrize(
    ("parameters", "modality"),
    [
        ({"width": 512, "height": 512}, Modality.IMAGE),
        ({"width": 512, "num_frames": 16}, Modality.VIDEO),
        ({"audio_length_in_s": 5.0}, Modality.AUDIO),
        ({"num_waveforms_per_prompt": 1}, Modality.AUDIO),
    ],
)
def test_the_modality_follows_from_the_arguments(parameters: dict[str, object], modality: Modality) -> None:
    assert record_for(signature(**parameters)).modality is modality


def test_a_second_guidance_stays_an_argument_by_name() -> None:
    record = record_for(signature(guidance_scale=3.5, true_cfg_scale=1.0))
    assert (record.guidance.argument, record.guidance.second_pass) == ("guidance_scale", "true_cfg_scale")
    assert set(record.options) == {"true_cfg_scale"}


def test_the_only_guidance_is_what_a_client_sets() -> None:
    assert record_for(signature(true_cfg_scale=4.0)).guidance.argument == "true_cfg_scale"


def test_a_pipeline_without_guidance_or_negative_prompt_has_none() -> None:
    record = record_for(signature())
    assert record.guidance.argument is None
    assert record.negative_prompt.argument is None


def test_a_pipeline_that_can_not_be_called_without_more_than_a_text_is_refused() -> None:
    with pytest.raises(
        ModelError, match="SomePipeline can't be served: it works from image, latent_ids, and"
    ):
        record_for(signature(image=REQUIRED, latent_ids=REQUIRED))


@pytest.mark.parametrize(
    "name",
    ["image", "mask_image", "mask_feature", "video", "conditions", "audio_guidance_scale", "src_audio"],
)
def test_what_a_pipeline_can_be_called_without_is_left_out_whatever_it_is_called(name: str) -> None:
    assert record_for(signature(**{name: None})).classes[name] is FieldClass.UNSUPPORTED


def test_the_steps_may_be_those_of_the_decoder() -> None:
    parameters = {"prompt": None, "generator": None, "prior_num_inference_steps": 25}
    record = record_for(CallSignature("Some", parameters | {"decoder_num_inference_steps": 20}))
    assert record.steps_argument == "decoder_num_inference_steps"
    assert record.wished["decoder_num_inference_steps"] == "num_inference_steps"
    assert record.defaults.num_inference_steps == 20
    with pytest.raises(ModelError, match="its __call__ lacks num_inference_steps"):
        record_for(CallSignature("Some", parameters))


def test_sizes_are_not_changed_behind_a_client_s_back() -> None:
    record = record_for(signature(use_resolution_binning=True, clean_caption=True))
    assert dict(record.constants) == {"use_resolution_binning": False, "clean_caption": False}


def test_a_signature_is_read_from_the_sources_of_diffusers() -> None:
    found = read_call_signature("SanaPipeline")
    assert found is not None
    assert found.parameters["num_inference_steps"] == 20
    assert found.parameters["guidance_scale"] == 4.5
    assert "self" not in found.parameters
    assert "kwargs" not in found.parameters


def test_an_unknown_class_has_no_signature() -> None:
    assert read_call_signature("MadeUpPipeline") is None


def test_a_class_that_knows_some_sizes_alone_is_asked_for_no_other() -> None:
    found = read_call_signature("Kandinsky5T2IPipeline")
    assert found is not None
    assert (640, 1408) in found.sizes
    record = record_for(found)
    model = ResolvedModel(record=record, model_index={}, path=Path(), defaults=record.defaults)
    assert (small := small_arguments(model, "a cat", 2))["width"] * small["height"] == 640 * 1408  # type: ignore[operator]
    for width, height in found.sizes:
        build_requests(model, Wishes(prompt="a cat", width=width, height=height), request_id="a")
    for width, height in ((640, 640), (1024, 1408), (896, 896)):
        with pytest.raises(InvalidRequest, match=f"a size of 1024x1024, .*got {width}x{height}"):
            build_requests(model, Wishes(prompt="a cat", width=width, height=height), request_id="a")


def test_a_class_that_makes_any_size_has_no_list_of_them() -> None:
    for name in ("FluxPipeline", "WanPipeline", "SanaPipeline"):
        found = read_call_signature(name)
        assert found is not None
        assert found.sizes == ()
