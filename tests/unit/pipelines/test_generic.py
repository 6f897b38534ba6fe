"""A pipeline without a record is served from what its arguments are called, or refused."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.call_signature import REQUIRED, CallSignature, read_call_signature
from stage_runtime.pipelines.contract import FieldClass
from stage_runtime.pipelines.generic import record_for

PLAIN = {"prompt": None, "num_inference_steps": 25, "generator": None}


def signature(**parameters: object) -> CallSignature:
    return CallSignature("SomePipeline", PLAIN | parameters, draws_from_text=False)


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


@pytest.mark.parametrize(
    "needs", [{"image": None}, {"mask_image": None}, {"video": None}, {"latent_ids": REQUIRED}]
)
def test_a_pipeline_that_needs_more_than_a_text_is_refused(needs: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=f"SomePipeline can't be served: it works from {next(iter(needs))}"):
        record_for(signature(**needs))


def test_an_image_may_be_optional_where_diffusers_says_that_text_is_enough() -> None:
    record = record_for(CallSignature("SomePipeline", PLAIN | {"image": None}, draws_from_text=True))
    assert record.classes["image"] is FieldClass.UNSUPPORTED


def test_a_signature_is_read_from_the_sources_of_diffusers() -> None:
    found = read_call_signature("SanaPipeline")
    assert found is not None
    assert found.draws_from_text
    assert found.parameters["num_inference_steps"] == 20
    assert found.parameters["guidance_scale"] == 4.5
    assert "self" not in found.parameters
    assert "kwargs" not in found.parameters


def test_an_unknown_class_has_no_signature() -> None:
    assert read_call_signature("MadeUpPipeline") is None
