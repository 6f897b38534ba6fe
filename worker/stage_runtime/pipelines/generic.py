"""A record for a pipeline class that has none of its own, made from arguments that mean the same everywhere.

What is not in the table is refused when a client asks for it; the pipeline's own default stands. A model whose
arguments mean more than that deserves a record.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.call_signature import REQUIRED, CallSignature
from stage_runtime.pipelines.contract import (
    Checkpoint,
    Defaults,
    FieldClass,
    Guidance,
    Limits,
    NegativePrompt,
    Option,
    PipelineRecord,
)
from stage_runtime.pipelines.records import ENGINE, TEXT, classify
from stage_runtime.pipelines.size_steps import SizeSteps, size_steps

T = TypeVar("T", int, float)

COUNT: Final = ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")
SECONDS: Final = ("audio_end_in_s", "audio_length_in_s", "audio_duration", "duration", "duration_s")
KNOWN: Final = classify(
    shared="height width num_frames max_sequence_length clip_skip",
    per_request="prompt prompt_2 prompt_3 negative_prompt negative_prompt_2 negative_prompt_3 guidance_scale"
    f" true_cfg_scale guidance_rescale num_inference_steps eta {' '.join(SECONDS)}",
    engine=f"{ENGINE} callback callback_steps use_resolution_binning clean_caption {' '.join(COUNT)}",
    unsupported="",
)
CONSTANTS: Final = {"use_resolution_binning": False, "clean_caption": False}
"""Captions stay as the client wrote them, and a picture has the size asked for, where a class would change either."""
STEPS: Final = ("num_inference_steps", "decoder_num_inference_steps")
OPTIONS: Final = {
    "prompt_2": TEXT,
    "prompt_3": TEXT,
    "negative_prompt_2": TEXT,
    "negative_prompt_3": TEXT,
    "max_sequence_length": Option(int, 1, 512),
    "clip_skip": Option(int, 0, 8),
    "guidance_scale": Option(float, 0, 100),
    "true_cfg_scale": Option(float, 0, 100),
    "guidance_rescale": Option(float, 0, 1),
    "eta": Option(float, 0, 1),
    **{name: Option(float, 0, 600) for name in SECONDS},
}


def record_for(signature: CallSignature, checkpoint: Checkpoint | None = None) -> PipelineRecord:
    """A record for the class, with the steps in which the checkpoint's sizes go.

    Whether a text is enough for it, the probe finds out. Raises ModelError when the class can't be called with one.
    """
    parameters = signature.parameters
    steps_argument = _steps_argument(signature)
    known = {**KNOWN, steps_argument: FieldClass.PER_REQUEST}
    classes = {name: known.get(name, FieldClass.UNSUPPORTED) for name in parameters}
    modality = _modality(signature)
    seconds = next((name for name in SECONDS if name in parameters), None)
    scales = [name for name in ("guidance_scale", "true_cfg_scale") if name in parameters]
    guidance = Guidance(
        argument=scales[0] if scales else None, second_pass=scales[1] if len(scales) == 2 else None
    )
    negative = NegativePrompt(argument="negative_prompt" if "negative_prompt" in parameters else None)
    wished = {"prompt", "negative_prompt", "width", "height", steps_argument, "num_frames"}
    return PipelineRecord(
        name=signature.class_name,
        pipeline_class=signature.class_name,
        modality=modality,
        classes=classes,
        options={
            name: OPTIONS[name]
            for name, kind in classes.items()
            if kind in (FieldClass.SHARED, FieldClass.PER_REQUEST)
            and name not in {*wished, guidance.argument, seconds}
        },
        guidance=guidance,
        negative_prompt=negative,
        defaults=Defaults(
            width=_default(signature, "width", int),
            height=_default(signature, "height", int),
            num_inference_steps=_default(signature, steps_argument, int) or 50,
            guidance_scale=_default(signature, guidance.argument or "", float),
            num_frames=_default(signature, "num_frames", int),
            seconds=_default(signature, seconds or "", float),
        ),
        limits=_limits(signature, checkpoint, modality),
        constants={name: value for name, value in CONSTANTS.items() if name in parameters},
        steps_argument=steps_argument,
        count_argument=next((name for name in COUNT if name in parameters), None),
        seconds_argument=seconds,
        sample_rate=44_100 if modality is Modality.AUDIO else None,
    )


def _steps_argument(signature: CallSignature) -> str:
    """The argument for the number of steps. Raises: ModelError for a class that a text is not enough for."""
    parameters, name = signature.parameters, signature.class_name
    steps = next((argument for argument in STEPS if argument in parameters), STEPS[0])
    if missing := {"prompt", steps, "generator"} - set(parameters):
        raise ModelError(f"{name} can't be served: its __call__ lacks {', '.join(sorted(missing))}")
    needed = [key for key, default in parameters.items() if default is REQUIRED and key != "prompt"]
    if needed:
        raise ModelError(
            f"{name} can't be served: it works from {', '.join(needed)}, and only pipelines that work from a prompt "
            "alone are supported"
        )
    return steps


def _limits(signature: CallSignature, checkpoint: Checkpoint | None, modality: Modality) -> Limits:
    """Sizes go by what the checkpoint's parts say, and by what the class's own default has."""
    usual = SizeSteps(32 if modality is Modality.VIDEO else 16, 1)
    steps = (checkpoint and size_steps(checkpoint, signature.size_terms)) or usual
    sides = [_default(signature, name, int) or 0 for name in ("width", "height")]
    frames = _default(signature, "num_frames", int)
    known = [side for size in signature.sizes for side in size]
    return Limits(
        size_multiple=math.gcd(*known) if known else math.gcd(steps.side, *sides),
        max_side=max(known) if known else max(Limits().max_side, *sides),
        sizes=signature.sizes,
        frame_step=steps.frames if frames and (frames - 1) % steps.frames == 0 else 1,
        max_frames=1024,
        max_seconds=600.0,
    )


def _modality(signature: CallSignature) -> Modality:
    parameters = set(signature.parameters)
    if parameters & {"num_frames", "video_length", "num_videos_per_prompt"}:
        return Modality.VIDEO
    if parameters & {"num_waveforms_per_prompt", *SECONDS}:
        return Modality.AUDIO
    return Modality.IMAGE


def _default(signature: CallSignature, name: str, kind: type[T]) -> T | None:
    value = signature.parameters.get(name)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return kind(value) if plain and isinstance(value, int | float) else None
