"""The explicit step protocol: the way into the runner for models that diffusers has no pipeline for.

A pipeline of diffusers is run as it is and taken apart where it calls its modules. A model written for this runtime
says its parts itself, as four methods over the states of several requests:

    prepare_encode(newcomers)            → a state each, with no step done
    denoise_step(states)                 → a prediction, one row or more a state
    step_scheduler(states, prediction)   → a state each, one step further
    post_decode(states)                  → a result each

A state is a value: no method writes to one, and all that a request needs is in it. So a batch that fails is simply
run again one by one, a preview is `post_decode` of a state half-way, and a checkpoint is the state itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch

from stage_runtime.core.request import Request


class Newcomer(NamedTuple):
    """A request that starts, and the generator of its noise, on the model's device, which nobody else draws from."""

    request: Request
    generator: torch.Generator


@runtime_checkable
class StepState(Protocol):
    """How far one request is. Holds tensors and plain values; a generator, if needed, as its state's tensor."""

    @property
    def step(self) -> int:
        """Denoise steps done."""

    @property
    def steps(self) -> int:
        """Denoise steps in all; at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one request has come to: exactly one field, on any device.

    Shapes: images (1, 3, height, width) and frames (1, frames, 3, height, width), floats in 0..1; audios
    (1, channels, samples).
    """

    images: torch.Tensor | None = None
    frames: torch.Tensor | None = None
    audios: torch.Tensor | None = None


S = TypeVar("S", bound=StepState)
S_contra = TypeVar("S_contra", bound=StepState, contravariant=True)


@runtime_checkable
class MakesChunks(Protocol[S_contra]):
    """A step model whose output is made in pieces: parts of it are finished while the rest is still being made."""

    def new_chunks(self, states: Sequence[S_contra]) -> Sequence[StepResult | None]:
        """What became final with the last step of each, as a piece of its output; None where nothing did.

        Called once after each step but a request's last, in a call of its own beside the four methods. Pieces are in
        order, and what `post_decode` gives in the end begins with them.
        """


@runtime_checkable
class StepModel(Protocol[S]):
    """A model by its four methods. They run without gradients, on the thread that loaded it, one at a time.

    The states of one call have equal batch keys, in any order, each at a step of its own. Answers are in the same
    order. A method raises what it likes: the members of the call are then tried alone, and only those that fail again
    fail. `InvalidRequest` names the client's field.

    Its networks are attributes of the instance, so that whoever counts or moves weights finds them.
    """

    arguments: ClassVar[Collection[str]]
    """Names that it reads in `Request.arguments`; its record has to classify these and no others."""
    device: torch.device
    sample_rate: int | None
    """Hertz, of what makes sound."""

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: torch.device) -> Self:
        """The model of a checkpoint, with its weights in `dtype` on `device`, all of them found in the files."""

    def prepare_encode(self, newcomers: Sequence[Newcomer]) -> Sequence[S]:
        """First states: the prompt encoded, the noise drawn. All of them have equal shared arguments."""

    def batch_key(self, state: S) -> Hashable:
        """What must be equal for two states to be in one call, e.g. the shape of a picture; never the step."""

    def denoise_step(self, states: Sequence[S]) -> Any:
        """The network's answer for the step that each is at, guidance included."""

    def step_scheduler(self, states: Sequence[S], prediction: Any) -> Sequence[S]:
        """The states one step further. `prediction` is what `denoise_step` gave for just these."""

    def post_decode(self, states: Sequence[S]) -> Sequence[StepResult]:
        """What each is a state of, at whatever step: at the last one, after an early stop, or for a preview."""
