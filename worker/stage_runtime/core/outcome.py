"""What became of a request: a sum type, each outcome with its request's id, so that nothing is matched by position."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stage_runtime.core.error_codec import safe, trace_of, words_of
from stage_runtime.core.errors import TOLD, InvalidRequest, RequestAborted, RequestFailed, StageError


class Modality(StrEnum):
    """What a pipeline makes."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class Output(Struct, frozen=True, kw_only=True):
    """A result in host memory.

    Shapes: image (height, width, 3) uint8 · video (frames, height, width, 3) uint8 · audio (channels, samples) float32.
    """

    modality: Modality
    data: bytes
    shape: tuple[int, ...]
    dtype: str
    sample_rate: int | None = None
    """Hertz; audio only."""


class Progressed(Struct, frozen=True, tag="progressed"):
    """`step` of `steps` denoise steps are done; `preview` shows the picture so far when one was asked for here.

    With `chunk`, `preview` is no picture of how far it is but a finished piece of the output. Pieces come in order; the
    last of them comes with the whole, in `Completed`.
    """

    request_id: str
    step: int
    steps: int
    preview: Output | None = None
    preview_index: int | None = None
    """Place of the preview in the request's `preview_steps`, or of the chunk among the chunks, from 0."""
    chunk: bool = False


class PhaseSeconds(Struct, frozen=True, kw_only=True):
    """Where a request's time on the device went, waits for its neighbours included; together all of it."""

    prepare: float
    """Until its first denoiser call: encoding the prompt, drawing the noise."""
    denoise: float
    """Until its last scheduler step is done."""
    decode: float
    """Until its output is there."""


class Completed(Struct, frozen=True, tag="completed"):
    """The output is there. `steps` is what was really run, lower than asked after an early stop."""

    request_id: str
    output: Output
    steps: int
    phases: PhaseSeconds | None = None
    """None where the executor doesn't measure them."""


class Computed(Struct, frozen=True, tag="computed"):
    """The device is done with the request; its output is on its way, as `Completed` or `Failed`.

    Frees the request's slot. Told to no consumer.
    """

    request_id: str


class Aborted(Struct, frozen=True, tag="aborted"):
    """The request was taken back; nothing more comes for it."""

    request_id: str


class Failed(Struct, frozen=True, tag="failed"):
    """The request ended with an error: its type's name, HTTP status and machine-readable code travel with it."""

    request_id: str
    message: str
    status: int = 500
    code: str = "request_failed"
    field: str | None = None
    trace: str = ""
    """Where it came from, for the log: no words of the error, which may quote the request."""


Outcome = Progressed | Completed | Aborted | Failed
"""What a consumer is told."""

ExecutorOutcome = Outcome | Computed
"""What an executor tells."""

Terminal = Completed | Aborted | Failed


def failed(request_id: str, error: Exception, doing: str = "", *, of: BaseException | None = None) -> Failed:
    """`error` as an outcome. A plain exception is the model's (500); ours keep their status, code and field.

    `doing`, when given, goes before the error's own words: what could not be done. `of`: what was really raised, where
    `error` stands for it. No reference to either is kept, so a traceback can't hold tensors alive.
    """
    message = safe(f"{doing}: {words_of(error)}" if doing else words_of(error))
    kind = error if isinstance(error, StageError) else RequestFailed
    field = error.field if isinstance(error, InvalidRequest) and isinstance(error.field, str) else None
    trace = trace_of(error if of is None else of)
    return Failed(request_id, message, kind.status, kind.code, None if field is None else safe(field), trace)


def as_error(outcome: Failed | Aborted) -> StageError:
    """The typed exception that an outcome stands for, to raise at the client's end: a 400 stays a 400."""
    if isinstance(outcome, Aborted):
        return RequestAborted(f"request {outcome.request_id} was aborted")
    if outcome.code == InvalidRequest.code:
        return InvalidRequest(outcome.message, outcome.field)
    return TOLD.get(outcome.code, RequestFailed)(outcome.message)
