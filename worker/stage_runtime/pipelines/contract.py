"""What a pipeline declares before it may be served, and what a client may wish of it. Plain values, no torch.

A record is the one place where models differ: registry, arguments and loader read it and know no model by name. It
is an allow-list: each argument of the pipeline's `__call__` stands in it with its class, and one that doesn't stops
the stage at start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.core.request import Value

MAX_SEED: Final = 2**63 - 1
MAX_OUTPUTS: Final = 128
"""Outputs of one ask; how many of them wait at once is admission's matter."""
MAX_PREVIEWS: Final = 3
"""As in OpenAI's images API."""


class FieldClass(StrEnum):
    """What an argument of a pipeline means for running several requests together (BATCH-INV-001)."""

    SHARED = "shared"
    """Equal within a wave, since it shapes the tensors or the way through the model."""
    PER_REQUEST = "per_request"
    """A request's own: it touches no row but that request's."""
    ENGINE = "engine"
    """Set by the runtime, never by a client."""
    UNSUPPORTED = "unsupported"
    """Refused: a plain value can't say it, or nothing here carries it out."""


@dataclass(frozen=True, slots=True)
class Option:
    """What a client may give for an argument under the pipeline's own name: a kind of value, and its bounds.

    `least` and `most` bound a number, `most` alone the characters of a text.
    """

    kind: type[str] | type[int] | type[float] | type[bool]
    least: float = 0
    most: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values for a request that doesn't say. None leaves it to whoever is asked next: stage, record, pipeline."""

    width: int | None = None
    height: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    num_frames: int | None = None
    seconds: float | None = None

    def overlaid(self, upper: Defaults) -> Defaults:
        """These values, with those of `upper` where it has any."""
        said = {f.name: value for f in fields(upper) if (value := getattr(upper, f.name)) is not None}
        return replace(self, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds within which the model was made to work, whatever the hardware. Lengths in pixels."""

    size_multiple: int = 16
    """Width and height are multiples of it: what the VAE shrinks by, times the patch of the denoiser."""
    max_side: int = 2048
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each size that the model makes; empty when it makes all within the other bounds."""
    max_steps: int = 1000
    """Time steps that the schedulers know."""
    max_guidance: float = 100.0
    max_prompt_chars: int = 8192
    prompt_tokens: int | None = None
    """Tokens that the text encoders read; the pipeline cuts what is beyond. None: the tokenizer's own limit."""
    frame_step: int = 1
    """The number of frames is 1 more than a multiple of it."""
    max_frames: int = 1
    max_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """How a client's `guidance_scale` reaches the pipeline."""

    argument: str | None
    """The argument that it sets; None when the pipeline has none."""
    second_pass: str | None = None
    """The argument that switches classifier-free guidance on, where `argument` is another kind of guidance.

    Guidance-distilled models take one scale as an input and can run a real second pass beside it.
    """

    @property
    def of_second_pass(self) -> str | None:
        """The argument whose value above 1 runs the negative prompt."""
        return self.second_pass or self.argument


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativePrompt:
    """What happens to a negative prompt. An empty one is given, not absent."""

    argument: str | None = "negative_prompt"
    """None when the pipeline knows none: giving one is then an error."""
    when_absent: str | None = None
    """What the pipeline gets when neither client nor stage gives one; None leaves it to the pipeline's own rule."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model in the diffusers format on disk, as far as its JSON files tell."""

    path: Path
    index: Mapping[str, object]
    """Contents of model_index.json."""

    def config(self, part: str) -> Mapping[str, object]:
        """The part's config.json; empty when it has none. Raises: ModelError when it can't be read."""
        file = self.path / part / "config.json"
        return read_json_object(file) if file.is_file() else {}


def read_json_object(path: Path) -> dict[str, object]:
    """A JSON file that holds an object. Raises: ModelError naming it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected an object, got a {type(value).__name__}")
    return value


def _any_checkpoint(_checkpoint: Checkpoint) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """The declaration of one pipeline class, or of one kind of checkpoint of it.

    Upholds: DIFF-MODEL-INV-001, BATCH-INV-001. Raises ValueError when it contradicts itself.
    """

    name: str
    pipeline_class: str
    """What model_index.json calls it: a class of diffusers, loaded by its own `from_pretrained`, or a step model."""
    step_model: str | None = None
    """`module:class` of a model outside diffusers (`pipelines.step_model.StepModel`); None for a pipeline of theirs."""
    modality: Modality
    classes: Mapping[str, FieldClass]
    """Every parameter of the pipeline's `__call__`."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Arguments that a client may give by the pipeline's name, beyond those that a wish names."""
    guidance: Guidance
    negative_prompt: NegativePrompt = NegativePrompt()
    defaults: Defaults = Defaults()
    limits: Limits = Limits()
    constants: Mapping[str, Value] = field(default_factory=dict)
    """Arguments that the runtime gives each request of this pipeline."""
    steps_argument: str = "num_inference_steps"
    """The argument for the number of denoise steps."""
    count_argument: str | None = "num_images_per_prompt"
    """The argument for several outputs in one call; the runtime always makes one, only the probe makes two."""
    seconds_argument: str | None = None
    """The argument for the length of audio."""
    sample_rate: int | None = None
    """Hertz, to size up the work of a request; the output's true rate comes from the model."""
    example_prompt: str = "a red circle"
    """A prompt that the model can draw, for requests that the runtime makes for itself."""
    check_prompt: Callable[[str], object] | None = None
    """Raises InvalidRequest for a text that the model can't draw, where it reads a language of its own. No torch."""
    matches: Callable[[Checkpoint], bool] = _any_checkpoint
    """Which checkpoints of this class it is for; the first record that matches is taken."""

    def __post_init__(self) -> None:
        for name in ("classes", "options", "constants"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        if faults := self._faults():
            raise ValueError(f"record {self.name}: {'; '.join(faults)}")

    @property
    def wished(self) -> Mapping[str, str]:
        """The pipeline's arguments that a wish names: argument -> name of the wish."""
        named = {
            "prompt": "prompt",
            self.negative_prompt.argument: "negative_prompt",
            "width": "width",
            "height": "height",
            self.steps_argument: "num_inference_steps",
            self.guidance.argument: "guidance_scale",
            "num_frames": "num_frames",
            self.seconds_argument: "seconds",
        }
        return {argument: wish for argument, wish in named.items() if argument in self.open_arguments}

    @property
    def open_arguments(self) -> frozenset[str]:
        """Arguments that a client decides, by a wish or by name."""
        decided = (FieldClass.SHARED, FieldClass.PER_REQUEST)
        return frozenset(name for name, kind in self.classes.items() if kind in decided)

    def _faults(self) -> list[str]:
        needed = {
            "prompt",
            self.steps_argument,
            self.guidance.argument,
            self.guidance.second_pass,
            self.negative_prompt.argument,
            self.seconds_argument,
        } - {None}
        faults = [f"{name} is not open" for name in sorted(map(str, needed - self.open_arguments))]
        ours = {"generator", *self.constants, *({self.count_argument} - {None})}
        engine = {name for name, kind in self.classes.items() if kind is FieldClass.ENGINE}
        faults += [f"{name} is not the engine's" for name in sorted(map(str, ours - engine))]
        by_name = self.open_arguments - set(self.wished)
        faults += [f"{name} has no option" for name in sorted(by_name - set(self.options))]
        faults += [
            f"{name} is an option but not open by name" for name in sorted(set(self.options) - by_name)
        ]
        return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A checkpoint on disk and how to run it."""

    record: PipelineRecord
    model_index: Mapping[str, object]
    path: Path
    defaults: Defaults
    """The record's, with the stage's laid over."""

    @property
    def absent_components(self) -> tuple[str, ...]:
        """Components that were saved as absent, `[null, null]` in model_index.json."""
        return tuple(name for name, value in self.model_index.items() if value == [None, None])


class Wishes(Struct, frozen=True, kw_only=True):
    """What a client wants, under the names it uses. None is "not said"; nothing is checked yet."""

    prompt: str
    negative_prompt: str | None = None
    n: int = 1
    width: int | None = None
    height: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    num_frames: int | None = None
    seconds: float | None = None
    seed: int | None = None
    """Seed of the first output; the i-th has seed + i. None draws one."""
    generator_state: bytes | None = None
    """Bytes of `torch.Generator.get_state()` to start from, instead of a seed; for one output."""
    partial_images: int = 0
    """Previews on the way."""
    chunks: bool = False
    """Finished pieces of the output as soon as they are there, of a model that makes any."""
    extra: dict[str, Value] = {}
    """Further arguments by the pipeline's own names."""
