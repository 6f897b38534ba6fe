"""A pipeline's result as host bytes, quantised exactly as diffusers does for its own pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.core.outcome import Modality, Output, PhaseSeconds

FIELDS = {"images": Modality.IMAGE, "frames": Modality.VIDEO, "audios": Modality.AUDIO}
"""Where diffusers' output classes keep what was made."""

DIMENSIONS = {Modality.IMAGE: 3, Modality.VIDEO: 4}
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
    """What a pipeline makes, from the field of its output."""
    for name, modality in FIELDS.items():
        if getattr(result, name, None) is not None:
            return modality
    raise InternalError(f"{type(result).__name__} holds neither {', '.join(FIELDS)}")


def to_output(result: Any, sample_rate: int | None = None) -> Output:
    """The first item of a pipeline's result made with `output_type="np"`.

    Shapes: images (1, height, width, 3), frames (1, frames, height, width, 3), both floats in [0, 1] and rounded to
    uint8; audios (1, channels, samples), kept as float32. `sample_rate` in hertz.
    """
    modality = modality_of(result)
    field = next(name for name, kind in FIELDS.items() if kind is modality)
    item = getattr(result, field)[0]
    if isinstance(item, torch.Tensor):
        item = item.detach().to("cpu", torch.float32).numpy()
    array = np.asarray(item, dtype=np.float32)
    if array.ndim != DIMENSIONS.get(modality, array.ndim):
        raise ValueError(f"{type(result).__name__} holds one {modality} of shape {array.shape}")
    if modality is not Modality.AUDIO:
        array = (array * 255).round().astype(np.uint8)
    return Output(
        modality=modality,
        data=array.tobytes(),
        shape=array.shape,
        dtype=str(array.dtype),
        sample_rate=sample_rate if modality is Modality.AUDIO else None,
    )


def tensor_to_output(result: Any, sample_rate: int | None = None) -> Output:
    """The first item of a pipeline's result made with `output_type="pt"`: the same bytes as `to_output` gives.

    Shapes: images (1, 3, height, width), frames (1, frames, 3, height, width), floats in [0, 1] on any device. They are
    quantised where they are, so that a quarter of the bytes has to be copied.
    """
    modality = modality_of(result)
    item = getattr(result, next(name for name, kind in FIELDS.items() if kind is modality))[0]
    if modality is Modality.AUDIO or not isinstance(item, torch.Tensor):
        return to_output(result, sample_rate)
    if item.ndim != DIMENSIONS[modality]:
        raise ValueError(f"{type(result).__name__} holds one {modality} of shape {tuple(item.shape)}")
    pixels = (item.detach().float() * 255).round().to(torch.uint8).movedim(-3, -1).contiguous().cpu().numpy()
    return Output(modality=modality, data=pixels.tobytes(), shape=pixels.shape, dtype=str(pixels.dtype))


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
