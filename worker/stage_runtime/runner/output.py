"""A pipeline's result as host bytes, quantised exactly as diffusers does for its own pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality, Output, PhaseSeconds
from stage_runtime.scripts.finite import check_finite, non_finite

FIELDS: Final = {
    "images": Modality.IMAGE,
    "image": Modality.IMAGE,
    "frames": Modality.VIDEO,
    "video": Modality.VIDEO,
    "audios": Modality.AUDIO,
}
"""Where diffusers' output classes keep what was made."""

BESIDE: Final = ("audio", "audios", "sound")
"""Where those of video keep the sound that belongs to it."""

DIMENSIONS: Final = {Modality.IMAGE: 3, Modality.VIDEO: 4}
"""Of one picture or clip; what makes sound is not agreed on them."""


class OutputFormat(NamedTuple):
    """How a pipeline is asked for its result, and how that becomes an output."""

    arguments: dict[str, Any]
    convert: Callable[[Any, int | None], Output]
    """(result, sample rate in hertz or None) → output."""


class Made(NamedTuple):
    """What a pipeline has made for a request, as it left the pipeline."""

    request_id: str
    result: Any
    steps: int
    phases: PhaseSeconds


Deliver = Callable[[Made], None]
"""Takes what was made, to convert it elsewhere."""


def modality_of(result: Any) -> Modality:
    """What a pipeline makes, from its output for one request.

    Raises: ModelError for an output of which nothing, or not all, can be given to a client.
    """
    field, modality = _field(result)
    beside = [name for name in BESIDE if name != field and getattr(result, name, None) is not None]
    if beside:
        raise ModelError(
            f"a {type(result).__name__} holds {' and '.join(beside)} beside its {modality.value}, and both together "
            "can't be given out"
        )
    return Modality.VIDEO if modality is Modality.IMAGE and _is_clip(getattr(result, field)) else modality


def _field(result: Any) -> tuple[str, Modality]:
    for name, modality in FIELDS.items():
        if getattr(result, name, None) is not None:
            return name, modality
    made = f" but {', '.join(result.keys())}" if isinstance(result, dict) else ""
    raise ModelError(f"a {type(result).__name__} holds neither pictures nor video nor sound{made}")


def _is_clip(pictures: Any) -> bool:
    """Several pictures for one request, or a list of them in the place of one, are the frames of a clip."""
    return len(pictures) > 1 or (len(pictures) == 1 and np.ndim(pictures[0]) == DIMENSIONS[Modality.VIDEO])


def _item(result: Any) -> tuple[Modality, Any]:
    """What was made for the one request."""
    field, modality = _field(result)
    value = getattr(result, field)
    if modality is Modality.IMAGE and _is_clip(value):
        frames = value[0] if len(value) == 1 else value
        return Modality.VIDEO, torch.stack(list(frames)) if isinstance(frames[0], torch.Tensor) else frames
    return modality, value[0]


def to_output(result: Any, sample_rate: int | None = None) -> Output:
    """What a pipeline made for one request with `output_type="np"`.

    Shapes: images (1, height, width, 3), frames (1, frames, height, width, 3) or as many images, both floats in [0, 1]
    that are rounded to uint8, or uint8 already; audios (1, channels, samples), kept as float32. `sample_rate` in hertz.

    Raises: NonFiniteOutput; ValueError for what is no such thing.
    """
    modality, item = _item(result)
    if isinstance(item, torch.Tensor):
        item = item.detach().to("cpu", torch.float32).numpy()
    array = np.asarray(item)
    if array.dtype != np.uint8:
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise non_finite("pixels or samples")
    if array.ndim != DIMENSIONS.get(modality, array.ndim):
        raise ValueError(f"{type(result).__name__} holds one {modality} of shape {array.shape}")
    if modality is not Modality.AUDIO and array.dtype != np.uint8:
        array = (array * 255).round().astype(np.uint8)
    return Output(
        modality=modality,
        data=array.tobytes(),
        shape=array.shape,
        dtype=str(array.dtype),
        sample_rate=sample_rate if modality is Modality.AUDIO else None,
    )


def tensor_to_output(result: Any, sample_rate: int | None = None) -> Output:
    """What a pipeline made for one request with `output_type="pt"`: the same bytes as `to_output` gives.

    Shapes: images (1, 3, height, width), frames (1, frames, 3, height, width), floats in [0, 1] on any device. They are
    quantised where they are, so that a quarter of the bytes has to be copied. Raises as `to_output`.
    """
    modality, item = _item(result)
    if modality is Modality.AUDIO or not isinstance(item, torch.Tensor):
        return to_output(result, sample_rate)
    if item.ndim != DIMENSIONS[modality]:
        raise ValueError(f"{type(result).__name__} holds one {modality} of shape {tuple(item.shape)}")
    check_finite(item, "pixels")
    pixels = (item.detach().float() * 255).round().to(torch.uint8).movedim(-3, -1).contiguous().cpu().numpy()
    return Output(modality=modality, data=pixels.tobytes(), shape=pixels.shape, dtype=str(pixels.dtype))


def check_sides(made: Output, asked: Mapping[str, Any]) -> None:
    """Raises: ModelError for a picture or a clip that is not of the height and width that were asked for, if any."""
    sides = asked.get("height"), asked.get("width")
    if (
        made.modality is Modality.AUDIO
        or made.dtype != "uint8"
        or None in sides
        or made.shape[-3:-1] == sides
    ):
        return
    height, width = made.shape[-3:-1]
    raise ModelError(
        f"asked for {sides[1]}x{sides[0]} the model makes {width}x{height}, so it can't be served"
    )


ALIKE: Final = 0.02
"""Of the range: a few of 255 levels, for another order of sums alone."""


def differs(got: Output, want: Output) -> str:
    """Why two outputs are not the same thing, "" if they are but for rounding."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"it has shape {got.shape} and dtype {got.dtype} instead of {want.shape} and {want.dtype}"
    left, right = (np.frombuffer(one.data, one.dtype).astype(np.float64) for one in (got, want))
    off = float(np.abs(left - right).max(initial=0.0) / max(np.abs(right).max(initial=0.0), 1e-12))
    return "" if off <= ALIKE else f"it differs by {off:.1e} of the largest value"


PIXELS: Final = OutputFormat({"output_type": "np"}, to_output)
"""What clients get: pixels, frames or samples."""

TENSORS: Final = OutputFormat({"output_type": "pt"}, tensor_to_output)
"""The same, left on the device by the pipeline: whoever converts it may do so while the device works on."""

PROCESSORS: Final = ("image_processor", "video_processor")
"""What a pipeline's own conversion is, where it knows both formats."""


def deferred(output: OutputFormat, pipeline: Any) -> OutputFormat:
    """`output`, or its like that leaves the copy to whoever converts, where the pipeline can."""
    can = any(getattr(pipeline, name, None) is not None for name in PROCESSORS)
    return TENSORS if output is PIXELS and can else output
