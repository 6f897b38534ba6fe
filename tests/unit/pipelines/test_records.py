"""A record is a whole declaration: of what goes in, what comes out, and what may differ between requests of a wave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stage_api.spec import SamplingDefaults
from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.call_signature import read_call_signature
from stage_runtime.pipelines.contract import Defaults, FieldClass, Guidance, Option, PipelineRecord
from stage_runtime.pipelines.records import QWEN_IMAGE, RECORDS, STABLE_AUDIO, classify

SERVED = {
    "FluxPipeline",
    "PixArtSigmaPipeline",
    "QwenImagePipeline",
    "StableAudioPipeline",
    "StableDiffusion3Pipeline",
    "StableDiffusionXLPipeline",
    "WanPipeline",
    "ZImagePipeline",
}

OF_DIFFUSERS = [record for record in RECORDS if record.step_model is None]

every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
every_pipeline = pytest.mark.parametrize("record", OF_DIFFUSERS, ids=lambda record: record.name)


def test_the_named_pipelines_have_records_of_their_own() -> None:
    assert {record.pipeline_class for record in OF_DIFFUSERS} == SERVED


def test_record_names_are_unique() -> None:
    names = [record.name for record in RECORDS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.invariant("BATCH-INV-001")
@every_pipeline
def test_every_argument_of_the_pipeline_is_classified(record: PipelineRecord) -> None:
    signature = read_call_signature(record.pipeline_class)
    assert signature is not None
    assert set(record.classes) == set(signature.parameters)


@pytest.mark.invariant("DIFF-MODEL-INV-001")
@every_record
def test_a_record_declares_modality_inputs_outputs_defaults_and_limits(record: PipelineRecord) -> None:
    assert isinstance(record.modality, Modality)
    assert record.classes["prompt"] is FieldClass.PER_REQUEST
    assert record.classes["generator"] is FieldClass.ENGINE
    assert record.classes.get(str(record.count_argument), FieldClass.ENGINE) is FieldClass.ENGINE
    assert record.guidance.argument in record.open_arguments
    assert 1 <= (record.defaults.num_inference_steps or 0) <= record.limits.max_steps
    assert record.limits.max_prompt_chars > 0
    assert (record.limits.prompt_tokens is None) == (record.step_model is not None)
    makes_sound = record.modality is Modality.AUDIO
    assert makes_sound == (record.seconds_argument is not None) == (record.sample_rate is not None)
    assert makes_sound == (record.defaults.width is None)
    assert (record.modality is Modality.VIDEO) == (record.defaults.num_frames is not None)


@every_record
def test_what_shapes_the_latents_is_shared_within_a_wave(record: PipelineRecord) -> None:
    shaping = {"height", "width", "num_frames", "max_sequence_length"} & set(record.classes)
    assert {record.classes[name] for name in shaping} <= {FieldClass.SHARED}


@every_record
def test_seed_step_count_prompt_and_guidance_are_a_requests_own(record: PipelineRecord) -> None:
    own = {"prompt", "num_inference_steps", record.guidance.argument, record.negative_prompt.argument}
    assert {record.classes[name] for name in own if name is not None} == {FieldClass.PER_REQUEST}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"guidance": Guidance(argument="strength")}, "strength is not open"),
        ({"guidance": Guidance(argument=None)}, "true_cfg_scale has no option"),
        ({"seconds_argument": "seconds"}, "seconds is not open"),
        ({"count_argument": "num_outputs"}, "num_outputs is not the engine's"),
        ({"constants": {"max_sequence_length": 5}}, "max_sequence_length is not the engine's"),
        ({"options": {}}, "max_sequence_length has no option"),
        (
            {"options": {**QWEN_IMAGE.options, "sigmas": Option(float, 0, 1)}},
            "sigmas is an option but not open",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(change: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        replace(QWEN_IMAGE, **change)


def test_an_argument_can_be_classified_once_only() -> None:
    with pytest.raises(ValueError, match="height is classified twice"):
        classify(shared="height", per_request="height", engine="", unsupported="")


def test_a_record_cant_be_changed_through_its_tables() -> None:
    with pytest.raises(TypeError):
        QWEN_IMAGE.classes["sigmas"] = FieldClass.SHARED  # type: ignore[index]


def test_defaults_of_a_stage_lie_over_those_of_a_record_where_it_says_something() -> None:
    laid = Defaults(width=64, height=64, guidance_scale=3.0).overlaid(Defaults(width=128, guidance_scale=0.0))
    assert laid == Defaults(width=128, height=64, guidance_scale=0.0)


def test_a_stages_spec_speaks_of_the_same_defaults() -> None:
    spec = SamplingDefaults(
        width=64, height=64, num_inference_steps=5, guidance_scale=2.0, negative_prompt=""
    )
    assert Defaults(**spec.model_dump()).num_inference_steps == 5


def test_a_wish_reaches_the_argument_that_the_record_names() -> None:
    assert QWEN_IMAGE.wished["true_cfg_scale"] == "guidance_scale"
    assert STABLE_AUDIO.wished["audio_end_in_s"] == "seconds"
    assert "width" not in STABLE_AUDIO.wished
