"""Messages as bytes and back, and large bytes out of outcomes and in again.

What can't be read is told as `BadMessage`, with what was wrong: whoever gets it decides whose fault that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stage_runtime.core.errors import InternalError
from stage_runtime.core.outcome import Completed, ExecutorOutcome, Output, Progressed
from stage_runtime.ipc.messages import INLINE_BYTES, Command, Parcel, Reply, ShmRef

AnyOutcome = TypeVar("AnyOutcome", bound=ExecutorOutcome)

Place = Callable[[bytes], ShmRef]
"""Puts bytes into shared memory."""

Take = Callable[[ShmRef], bytes]
"""Gets bytes out of shared memory; they are the caller's own."""

_ENCODER: Final = msgspec.msgpack.Encoder()

# msgspec lets some of Python's own errors through: of text that is no UTF-8, and of nesting that is too deep.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


class BadMessage(InternalError):
    """A message that can't be written or read. The text says what is wrong with it."""


def encode(message: Struct) -> bytes:
    """`message` as msgpack.

    Raises: BadMessage for a value that has no place in a message: an object, an integer of more than 64 bits.
    """
    try:
        return _ENCODER.encode(message)
    except _UNREADABLE as error:
        raise BadMessage(f"{type(message).__name__} can't be sent to another process: {error}") from error


def decoder(kind: Any, what: str) -> Callable[[bytes], Any]:
    """What reads messages of a union of tagged structs, called `what` in errors. It raises: BadMessage."""
    read = msgspec.msgpack.Decoder(kind).decode

    def decode(data: bytes) -> Any:
        try:
            return read(data)
        except _UNREADABLE as error:
            raise BadMessage(f"no {what} in {len(data)} bytes: {error}") from error

    return decode


decode_command: Final[Callable[[bytes], Command]] = decoder(Command, "command")
decode_reply: Final[Callable[[bytes], Reply]] = decoder(Reply, "reply")


def detach(outcome: AnyOutcome, place: Place | None) -> tuple[AnyOutcome, Parcel | None]:
    """`outcome` without the bytes that are too large for a message, and where they are now.

    `place` None leaves everything where it is: for a receiver on another machine. Raises: what `place` raises.
    """
    output = output_of(outcome)
    if place is None or output is None or len(output.data) <= INLINE_BYTES:
        return outcome, None
    ref = place(output.data)
    light = replace(output, data=b"")
    return _with(outcome, light), Parcel(outcome.request_id, isinstance(outcome, Progressed), ref)


def attach(outcome: AnyOutcome, parcel: Parcel | None, take: Take) -> AnyOutcome:
    """The whole outcome again. Raises: BadMessage for a parcel of another outcome, and what `take` raises."""
    if parcel is None:
        return outcome
    output = output_of(outcome)
    if output is None or (parcel.request_id, parcel.preview) != (
        outcome.request_id,
        isinstance(outcome, Progressed),
    ):
        what = "preview" if parcel.preview else "result"
        name = type(outcome).__name__
        raise BadMessage(f"a {what} of {parcel.request_id} came for {name} of {outcome.request_id}")
    return _with(outcome, replace(output, data=take(parcel.ref)))


def output_of(outcome: ExecutorOutcome) -> Output | None:
    """What it carries: a result, a picture so far; None for neither."""
    match outcome:
        case Completed(output=output) | Progressed(preview=output):
            return output
        case _:
            return None


def _with(outcome: AnyOutcome, output: Output) -> AnyOutcome:
    if isinstance(outcome, Progressed):
        return replace(outcome, preview=output)
    return replace(outcome, output=output)
