"""The models: one record each. Adding a model is adding a record here; nothing else names a model.

Argument lists are those of diffusers 0.42.1; the loader compares them with the installed class at each start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.contract import (
    Defaults,
    FieldClass,
    Guidance,
    Limits,
    NegativePrompt,
    Option,
    PipelineRecord,
)
from stage_runtime.pipelines.families.digits.prompts import read as read_digits

RECORD_KEY: Final = "_omnistage_record"
"""Key of model_index.json by which a checkpoint asks for a record of its own. Diffusers passes over it."""

TEXT: Final = Option(str, most=8192)
ENGINE: Final = "generator output_type return_dict callback_on_step_end callback_on_step_end_tensor_inputs"
"""Arguments that the runtime sets in every pipeline that has them."""


def classify(*, shared: str, per_request: str, engine: str, unsupported: str) -> Mapping[str, FieldClass]:
    """Each name with its class. Raises ValueError when a name stands twice."""
    classes: dict[str, FieldClass] = {}
    for names, kind in (
        (shared, FieldClass.SHARED),
        (per_request, FieldClass.PER_REQUEST),
        (engine, FieldClass.ENGINE),
        (unsupported, FieldClass.UNSUPPORTED),
    ):
        for name in names.split():
            if name in classes:
                raise ValueError(f"{name} is classified twice")
            classes[name] = kind
    return classes


QWEN_IMAGE: Final = PipelineRecord(
    name="qwen-image",
    pipeline_class="QwenImagePipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width max_sequence_length",
        # guidance_scale is for a distilled model that was never released; the pipeline takes it and ignores it without.
        per_request="prompt negative_prompt true_cfg_scale guidance_scale num_inference_steps",
        engine=f"{ENGINE} num_images_per_prompt",
        unsupported="sigmas latents prompt_embeds prompt_embeds_mask negative_prompt_embeds"
        " negative_prompt_embeds_mask attention_kwargs",
    ),
    options={"max_sequence_length": Option(int, 1, 1024), "guidance_scale": Option(float, 0, 100)},
    guidance=Guidance(argument="true_cfg_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=50, guidance_scale=4.0),
    limits=Limits(prompt_tokens=512),
)

SHAPES: Final = replace(
    QWEN_IMAGE,
    name="shapes",
    # Trained with an empty prompt for the second pass, at this one size.
    negative_prompt=NegativePrompt(when_absent=""),
    defaults=Defaults(width=64, height=64, num_inference_steps=20, guidance_scale=3.0),
    limits=Limits(size_multiple=8, max_side=256, max_prompt_chars=1024, prompt_tokens=512),
    matches=lambda checkpoint: checkpoint.index.get(RECORD_KEY) == "shapes",
)

STABLE_DIFFUSION_3: Final = PipelineRecord(
    name="stable-diffusion-3",
    pipeline_class="StableDiffusion3Pipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width clip_skip max_sequence_length",
        per_request="prompt prompt_2 prompt_3 negative_prompt negative_prompt_2 negative_prompt_3 guidance_scale"
        " num_inference_steps mu",
        engine=f"{ENGINE} num_images_per_prompt",
        unsupported="sigmas latents prompt_embeds negative_prompt_embeds pooled_prompt_embeds"
        " negative_pooled_prompt_embeds ip_adapter_image ip_adapter_image_embeds joint_attention_kwargs"
        " skip_guidance_layers skip_layer_guidance_scale skip_layer_guidance_stop skip_layer_guidance_start",
    ),
    options={
        "prompt_2": TEXT,
        "prompt_3": TEXT,
        "negative_prompt_2": TEXT,
        "negative_prompt_3": TEXT,
        "clip_skip": Option(int, 0, 8),
        "max_sequence_length": Option(int, 1, 512),
        "mu": Option(float, 0, 10),
    },
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=28, guidance_scale=7.0),
    limits=Limits(prompt_tokens=256),
)

FLUX: Final = PipelineRecord(
    name="flux",
    pipeline_class="FluxPipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width max_sequence_length",
        per_request="prompt prompt_2 negative_prompt negative_prompt_2 true_cfg_scale guidance_scale"
        " num_inference_steps",
        engine=f"{ENGINE} num_images_per_prompt",
        unsupported="sigmas latents prompt_embeds pooled_prompt_embeds negative_prompt_embeds"
        " negative_pooled_prompt_embeds ip_adapter_image ip_adapter_image_embeds negative_ip_adapter_image"
        " negative_ip_adapter_image_embeds joint_attention_kwargs",
    ),
    options={
        "prompt_2": TEXT,
        "negative_prompt_2": TEXT,
        "true_cfg_scale": Option(float, 0, 100),
        "max_sequence_length": Option(int, 1, 512),
    },
    guidance=Guidance(argument="guidance_scale", second_pass="true_cfg_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=28, guidance_scale=3.5),
    limits=Limits(prompt_tokens=512),
)

FLUX_UNGUIDED: Final = replace(
    FLUX,
    name="flux-unguided",
    # Distilled to few steps without guidance: its denoiser takes no scale, and the pipeline passes over one.
    options={
        **{name: option for name, option in FLUX.options.items() if name != "true_cfg_scale"},
        "guidance_scale": Option(float, 0, 100),
        "max_sequence_length": Option(int, 1, 256),
    },
    guidance=Guidance(argument="true_cfg_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=4, guidance_scale=1.0),
    limits=Limits(prompt_tokens=256),
    matches=lambda checkpoint: checkpoint.config("transformer").get("guidance_embeds") is False,
)

WAN: Final = PipelineRecord(
    name="wan",
    pipeline_class="WanPipeline",
    modality=Modality.VIDEO,
    classes=classify(
        shared="height width num_frames max_sequence_length",
        per_request="prompt negative_prompt guidance_scale num_inference_steps",
        engine=f"{ENGINE} num_videos_per_prompt",
        # The second scale is for checkpoints with two denoisers.
        unsupported="guidance_scale_2 latents prompt_embeds negative_prompt_embeds attention_kwargs",
    ),
    options={"max_sequence_length": Option(int, 1, 512)},
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(width=832, height=480, num_frames=81, num_inference_steps=50, guidance_scale=5.0),
    limits=Limits(size_multiple=16, max_side=1920, frame_step=4, max_frames=161, prompt_tokens=512),
    count_argument="num_videos_per_prompt",
)

WAN_TWO_DENOISERS: Final = replace(
    WAN,
    name="wan-two-denoisers",
    classes={**WAN.classes, "guidance_scale_2": FieldClass.PER_REQUEST},
    options={**WAN.options, "guidance_scale_2": Option(float, 0, 100)},
    matches=lambda checkpoint: checkpoint.index.get("boundary_ratio") is not None,
)

WAN_FINE_STEPS: Final = replace(
    WAN,
    name="wan-fine-steps",
    # Its VAE shrinks each side by 16 and its denoiser takes patches of 2.
    defaults=replace(WAN.defaults, width=1280, height=704, num_frames=121),
    limits=replace(WAN.limits, size_multiple=32),
    matches=lambda checkpoint: checkpoint.index.get("expand_timesteps") is True,
)

Z_IMAGE: Final = PipelineRecord(
    name="z-image",
    pipeline_class="ZImagePipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width max_sequence_length",
        per_request="prompt negative_prompt guidance_scale num_inference_steps cfg_normalization cfg_truncation",
        engine=f"{ENGINE} num_images_per_prompt",
        unsupported="sigmas latents prompt_embeds negative_prompt_embeds joint_attention_kwargs",
    ),
    options={
        "max_sequence_length": Option(int, 1, 1024),
        "cfg_normalization": Option(bool),
        "cfg_truncation": Option(float, 0, 1),
    },
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=50, guidance_scale=5.0),
    limits=Limits(prompt_tokens=512),
)

PIXART_SIGMA: Final = PipelineRecord(
    name="pixart-sigma",
    pipeline_class="PixArtSigmaPipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width max_sequence_length",
        per_request="prompt negative_prompt guidance_scale num_inference_steps eta",
        engine="generator output_type return_dict callback callback_steps num_images_per_prompt clean_caption"
        " use_resolution_binning",
        unsupported="timesteps sigmas latents prompt_embeds prompt_attention_mask negative_prompt_embeds"
        " negative_prompt_attention_mask",
    ),
    options={"max_sequence_length": Option(int, 1, 300), "eta": Option(float, 0, 1)},
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=20, guidance_scale=4.5),
    limits=Limits(prompt_tokens=300),
    # Captions stay as the client wrote them, and the picture has the size asked for: binning draws another and resizes.
    constants={"clean_caption": False, "use_resolution_binning": False},
)

STABLE_DIFFUSION_XL: Final = PipelineRecord(
    name="stable-diffusion-xl",
    pipeline_class="StableDiffusionXLPipeline",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width clip_skip",
        per_request="prompt prompt_2 negative_prompt negative_prompt_2 guidance_scale guidance_rescale"
        " num_inference_steps eta",
        engine=f"{ENGINE} num_images_per_prompt",
        unsupported="timesteps sigmas denoising_end latents prompt_embeds negative_prompt_embeds"
        " pooled_prompt_embeds negative_pooled_prompt_embeds ip_adapter_image ip_adapter_image_embeds"
        " cross_attention_kwargs original_size crops_coords_top_left target_size negative_original_size"
        " negative_crops_coords_top_left negative_target_size",
    ),
    options={
        "prompt_2": TEXT,
        "negative_prompt_2": TEXT,
        "clip_skip": Option(int, 0, 8),
        "guidance_rescale": Option(float, 0, 1),
        "eta": Option(float, 0, 1),
    },
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(width=1024, height=1024, num_inference_steps=50, guidance_scale=5.0),
    limits=Limits(size_multiple=8, prompt_tokens=77),
)

STABLE_AUDIO: Final = PipelineRecord(
    name="stable-audio",
    pipeline_class="StableAudioPipeline",
    modality=Modality.AUDIO,
    classes=classify(
        shared="",
        # Latents always have the model's full length; the seconds condition it and cut the output.
        per_request="prompt negative_prompt audio_end_in_s audio_start_in_s guidance_scale num_inference_steps eta",
        engine="generator output_type return_dict callback callback_steps num_waveforms_per_prompt",
        unsupported="latents initial_audio_waveforms initial_audio_sampling_rate prompt_embeds"
        " negative_prompt_embeds attention_mask negative_attention_mask",
    ),
    options={"audio_start_in_s": Option(float, 0, 512), "eta": Option(float, 0, 1)},
    guidance=Guidance(argument="guidance_scale"),
    defaults=Defaults(num_inference_steps=100, guidance_scale=7.0),
    limits=Limits(max_seconds=48.0, prompt_tokens=128),
    count_argument="num_waveforms_per_prompt",
    seconds_argument="audio_end_in_s",
    sample_rate=44_100,
)

DIGITS: Final = PipelineRecord(
    name="digits",
    pipeline_class="DigitsModel",
    step_model="stage_runtime.pipelines.families.digits.model:DigitsModel",
    modality=Modality.IMAGE,
    classes=classify(
        shared="height width",
        per_request="prompt guidance_scale num_inference_steps",
        engine="generator",
        unsupported="",
    ),
    guidance=Guidance(argument="guidance_scale"),
    negative_prompt=NegativePrompt(argument=None),
    defaults=Defaults(width=32, height=32, num_inference_steps=16, guidance_scale=2.0),
    # Drawn pixel by pixel, at the one size that it was trained at.
    limits=Limits(size_multiple=32, max_side=32, max_guidance=20.0, max_prompt_chars=256),
    count_argument=None,
    example_prompt="a red 7",
    check_prompt=read_digits,
)

RECORDS: Final[tuple[PipelineRecord, ...]] = (
    SHAPES,
    DIGITS,
    QWEN_IMAGE,
    STABLE_DIFFUSION_3,
    FLUX_UNGUIDED,
    FLUX,
    WAN_TWO_DENOISERS,
    WAN_FINE_STEPS,
    WAN,
    Z_IMAGE,
    PIXART_SIGMA,
    STABLE_DIFFUSION_XL,
    STABLE_AUDIO,
)
"""All of them; among those of one class the first that matches a checkpoint is taken."""
