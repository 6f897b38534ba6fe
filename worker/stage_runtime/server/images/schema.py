"""The wire of /v1/images/generations: OpenAI's fields, and the few that diffusion needs beside them.

Decides what is well-formed, whatever the model. A field of OpenAI's that can't be honoured is refused unless it
holds its neutral value; nothing is ignored. Null means absent, as it does there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from stage_api.base import WHOLE
from stage_api.spec import MAX_STEPS
from stage_runtime.server.images.encoder import OutputFormat

MAX_PROMPT_CHARS = 32_000  # OpenAI's limit
MAX_IMAGES = 10
MAX_PARTIAL_IMAGES = 3
MAX_GUIDANCE = 100.0
MAX_SEED = 2**63 - 1
SIZE_PATTERN = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"
PATTERNS_IN_WORDS = {SIZE_PATTERN: 'expected WIDTHxHEIGHT in pixels, such as 64x64, or "auto"'}
"""What a client is told whose text doesn't match: no client should have to read a regular expression."""

BETWEEN_FIELDS = "between_fields"  # type of a fault whose context names the field to blame

Prompt = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]


class ImageRequest(BaseModel):
    """Body of POST /v1/images/generations."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    prompt: Annotated[Prompt, Field(description="What to draw.")]
    model: Annotated[str | None, Field(description="Name of the served model, if given.")] = None
    n: Annotated[
        Annotated[int, Field(ge=1, le=MAX_IMAGES), WHOLE] | None,
        Field(description="Images to make, with seeds seed … seed+n-1. Default 1."),
    ] = None
    size: Annotated[
        Annotated[str, Field(pattern=SIZE_PATTERN)] | None,
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
    style: Annotated[None, Field(description="Not supported: say it in the prompt.")] = None
    moderation: Annotated[Literal["auto"] | None, Field(description="Nothing is moderated.")] = None

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
            raise _fault("partial_images", "needs stream: true")
        if self.file_format == "png" and self.compression != 100:
            raise _fault("output_compression", "png is lossless; use jpeg or webp")
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


class ModelCard(BaseModel):
    """A model as OpenAI describes one, with what this stage knows of it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["omnistage"] = "omnistage"
    pipeline: str
    modality: str
    defaults: dict[str, Any]
    limits: dict[str, Any]
    capability: dict[str, Any] | None


class ModelList(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """What went wrong: for people, by kind, the field to blame, for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


def _fault(field: str, reason: str) -> PydanticCustomError:
    """A fault between fields, blamed on one of them."""
    return PydanticCustomError(BETWEEN_FIELDS, "{reason}", {"reason": reason, "field": field})
