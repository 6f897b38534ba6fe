"""What a body asks for, in the words that the pipelines' arguments are made from; and back, where one is refused."""

from __future__ import annotations

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.server.images.schema import ImageRequest


def wishes(body: ImageRequest) -> Wishes:
    """The wishes of `body`."""
    width, height = body.dimensions or (None, None)
    return Wishes(
        prompt=body.prompt,
        negative_prompt=body.negative_prompt,
        n=body.count,
        width=width,
        height=height,
        num_inference_steps=body.num_inference_steps,
        guidance_scale=body.guidance_scale,
        seed=body.seed,
        partial_images=body.partial_images or 0,
    )


def as_asked(refused: InvalidRequest) -> InvalidRequest:
    """The refusal of a wish under the name of the field that it came from."""
    if refused.field in ("width", "height"):
        return InvalidRequest(f"size: {refused}", "size")
    return refused
