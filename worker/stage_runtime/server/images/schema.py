"""The wire of /v1/images/generations: OpenAI's fields, and the few that diffusion needs beside them.

Decides what is well-formed, whatever the model. A field of OpenAI's that can't be honoured is refused unless it
holds its neutral value; nothing is ignored. Null means absent, as it does there.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from stage_api.base import WHOLE
from stage_api.spec import MAX_STEPS
from stage_runtime.server.http.schema import Body, between_fields, in_words, unsupported
from stage_runtime.server.images.encoder import OutputFormat

MAX_PROMPT_CHARS: Final = 32_000  # OpenAI's limit
MAX_IMAGES: Final = 10
MAX_PARTIAL_IMAGES: Final = 3
MAX_GUIDANCE: Final = 100.0
MAX_SEED: Final = 2**63 - 1
SIZE_PATTERN: Final = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"

Prompt = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]


def _size(text: str) -> str:
    """No client should have to read a regular expression."""
    if not re.fullmatch(SIZE_PATTERN.strip("^$"), text):
        raise in_words('expected WIDTHxHEIGHT in pixels, such as 64x64, or "auto"')
    return text


Size = Annotated[str, Field(json_schema_extra={"pattern": SIZE_PATTERN}), AfterValidator(_size)]


NO_PICTURES_IN: Final = unsupported("pictures are drawn from text alone")
ONE_FRAME: Final = unsupported("a picture has one frame")


class ImageRequest(Body):
    """Body of POST /v1/images/generations."""

    prompt: Annotated[Prompt, Field(description="What to draw.")]
    model: Annotated[str | None, Field(description="Name of the served model, if given.")] = None
    n: Annotated[
        Annotated[int, Field(ge=1, le=MAX_IMAGES), WHOLE] | None,
        Field(description="Images to make, with seeds seed … seed+n-1. Default 1."),
    ] = None
    size: Annotated[
        Size | None,
        Field(description="WIDTHxHEIGHT in pixels, exactly; `auto` is the model's own size."),
    ] = None
    seed: Annotated[
        Annotated[int, Field(ge=0, le=MAX_SEED), WHOLE] | None,
        Field(description="Seed of the first image; drawn and told in the answer when absent."),
    ] = None
    num_inference_steps: Annotated[
        Annotated[int, Field(ge=1, le=MAX_STEPS), WHOLE] | None,
        Field(description="Denoise steps. Default: the model's."),
    ] = None
    guidance_scale: Annotated[
        Annotated[float, Field(ge=0, le=MAX_GUIDANCE)] | None,
        Field(description="Weight of the prompt. Default: the model's."),
    ] = None
    negative_prompt: Annotated[Prompt | None, Field(description="What not to draw.")] = None
    output_format: Annotated[OutputFormat | None, Field(description="Default png.")] = None
    output_compression: Annotated[
        Annotated[int, Field(ge=0, le=100), WHOLE] | None,
        Field(description="Quality of jpeg and webp in percent. Default 100."),
    ] = None
    response_format: Annotated[
        Literal["b64_json"] | None, Field(description="Images come in the answer, never as URLs.")
    ] = None
    stream: Annotated[bool | None, Field(description="Answer with server-sent events.")] = None
    partial_images: Annotated[
        Annotated[int, Field(ge=0, le=MAX_PARTIAL_IMAGES), WHOLE] | None,
        Field(description="Previews to send on the way; needs `stream`. Default 0."),
    ] = None
    user: Annotated[str | None, Field(description="Accepted and not used.")] = None
    safety_identifier: Annotated[str | None, Field(description="Accepted and not used.")] = None
    background: Annotated[Literal["auto", "opaque"] | None, Field(description="Always opaque.")] = None
    quality: Annotated[Literal["auto"] | None, Field(description="Use `num_inference_steps`.")] = None
    moderation: Annotated[Literal["auto"] | None, Field(description="Nothing is moderated.")] = None

    # Fields of OpenAI's that nothing here carries out.
    style: Annotated[None, unsupported("say it in the prompt")] = None
    image: Annotated[None, NO_PICTURES_IN] = None
    mask: Annotated[None, NO_PICTURES_IN] = None
    markup: Annotated[None, NO_PICTURES_IN] = None
    input_fidelity: Annotated[None, NO_PICTURES_IN] = None
    frame_count: Annotated[None, ONE_FRAME] = None
    frame_duration_ms: Annotated[None, ONE_FRAME] = None
    complexity: Annotated[None, unsupported("use num_inference_steps")] = None
    svg: Annotated[None, unsupported("pictures are made of pixels")] = None
    metadata: Annotated[None, unsupported("nothing is stored")] = None
    store: Annotated[None, unsupported("nothing is stored")] = None
    service_tier: Annotated[None, unsupported("all requests are treated alike")] = None
    prompt_cache_key: Annotated[None, unsupported("prompts are not cached")] = None

    @property
    def count(self) -> int:
        """How many images."""
        return 1 if self.n is None else self.n

    @property
    def dimensions(self) -> tuple[int, int] | None:
        """Width and height in pixels; None leaves both to the model."""
        if self.size is None or self.size == "auto":
            return None
        width, height = self.size.split("x")
        return int(width), int(height)

    @property
    def file_format(self) -> OutputFormat:
        """The format to encode to."""
        return self.output_format or "png"

    @property
    def compression(self) -> int:
        """Quality in percent."""
        return 100 if self.output_compression is None else self.output_compression

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.partial_images and not self.stream:
            raise between_fields("partial_images", "needs stream: true")
        if self.file_format == "png" and self.compression != 100:
            raise between_fields("output_compression", "png is lossless; use jpeg or webp")
        return self


class ImageData(BaseModel):
    """One image of an answer."""

    b64_json: str


class ImageResponse(BaseModel):
    """Answer of POST /v1/images/generations; `seeds` are those really used, image by image."""

    created: int
    background: Literal["opaque"]
    output_format: OutputFormat
    size: str
    seeds: list[int]
    data: list[ImageData]
