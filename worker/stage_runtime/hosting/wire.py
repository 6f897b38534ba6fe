"""What a stage's two processes say to each other: tagged structs, one union each way.

Asks go from the client's process to the engine's, tells come back. An ask that wants an answer has a number. Errors
travel as what they are: a 400 stays a 400, and a full line keeps its seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control, Health, RankHealth
from stage_runtime.core.error_codec import Raised
from stage_runtime.core.outcome import Completed, Outcome, Terminal
from stage_runtime.core.request import Request
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import Parcel
from stage_runtime.sched.base import Snapshot

PROTOCOL: Final = 1
"""Version of these messages; a child of another version is refused."""


# From the client's process to the engine's


class Setup(Struct, frozen=True, tag="setup", kw_only=True):
    """All the child has to know to build its engine."""

    factory: str
    """`module:function`, which makes the engine of `argument`, not started."""
    argument: bytes
    log_as: str | None = None
    """Name of the stage in log lines; None leaves logging as Python has it."""
    grace_s: float = 0.0
    """How long what runs may take to finish once the child itself is told to stop (SIGTERM)."""


class Submit(Struct, frozen=True, tag="submit"):
    """Admit all of these, or none. Answer: `Accepted` or `Refused`."""

    number: int
    requests: tuple[Request, ...]


class TakeBack(Struct, frozen=True, tag="take_back"):
    """The consumer of this request of this submission is gone."""

    number: int
    request_id: str


class Abort(Struct, frozen=True, tag="abort"):
    """End a request now, whosever it is."""

    request_id: str


class Ask(Struct, frozen=True, tag="ask"):
    """A control call. Answer: `Answered` or `Refused`."""

    number: int
    call: Control


class Count(Struct, frozen=True, tag="count"):
    """Count what is held for requests. Answer: `Answered` with a dict."""

    number: int


class Observe(Struct, frozen=True, tag="observe"):
    """Tell of waves and requests from now on."""


class CloseAdmission(Struct, frozen=True, tag="close_admission"):
    """Admit nothing from now on; finish what is there."""


class Stop(Struct, frozen=True, tag="stop"):
    """End what still runs, within so many seconds, and exit."""

    patience_s: float


Asks = Setup | Submit | TakeBack | Abort | Ask | Count | Observe | CloseAdmission | Stop


# From the engine's process to the client's


class Hello(Struct, frozen=True, tag="hello"):
    """The child is there."""

    pid: int
    protocol: int = PROTOCOL


class Loaded(Struct, frozen=True, tag="loaded"):
    """The model is there."""

    capability: Capability


class Status(Struct, frozen=True, tag="status"):
    """How the engine is, at one moment. Told when it changes, and many times a second while there is work."""

    phase: Phase
    progress: Progress
    load: Snapshot


class Accepted(Struct, frozen=True, tag="accepted"):
    """All of a submission is admitted."""

    number: int


class Refused(Struct, frozen=True, tag="refused"):
    """A submission or a call was refused."""

    number: int
    error: Raised


class Answered(Struct, frozen=True, tag="answered"):
    """The answer to a call."""

    number: int
    value: object = None


class News(Struct, frozen=True):
    """An outcome of a request of the submission `number`; large bytes of it lie where `parcel` says."""

    number: int
    outcome: Outcome
    parcel: Parcel | None = None


class Told(Struct, frozen=True, tag="told"):
    """Outcomes, in order."""

    news: tuple[News, ...]


class Started(Struct, frozen=True, tag="started"):
    """For an observer: a request entered its first wave."""

    queue_s: float


class Waved(Struct, frozen=True, tag="waved"):
    """For an observer: a tick advanced some requests."""

    size: int
    steps: int
    seconds: float


class Ended(Struct, frozen=True, tag="ended"):
    """For an observer: a request ended. A picture's bytes are left out."""

    outcome: Terminal
    seconds: float


class Observed(Struct, frozen=True, tag="observed"):
    """What an observer is to be told, in order. Comes before the outcomes that it is about."""

    events: tuple[Started | Waved | Ended, ...]


class Leaving(Struct, frozen=True, tag="leaving"):
    """The child's last words: what its engine died of; None when it ended in order."""

    death: Raised | None = None


Tells = Hello | Loaded | Status | Accepted | Refused | Answered | Told | Observed | Leaving

_ENCODER: Final = msgspec.msgpack.Encoder()
_ASKS: Final = msgspec.msgpack.Decoder(Asks)
_TELLS: Final = msgspec.msgpack.Decoder(Tells)
# Python's own errors come through too: of text that is no UTF-8, and of nesting that is too deep.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def encode(message: Asks | Tells) -> bytes:
    """Raises: BadMessage for a value that can't cross: an object, an integer of more than 64 bits."""
    try:
        return _ENCODER.encode(message)
    except _UNREADABLE as error:
        raise BadMessage(f"{type(message).__name__} can't be sent to another process: {error}") from error


def decode_ask(data: bytes) -> Asks:
    """Raises: BadMessage."""
    try:
        return _ASKS.decode(data)
    except _UNREADABLE as error:
        raise BadMessage(f"no ask in {len(data)} bytes: {error}") from error


def decode_tell(data: bytes) -> Tells:
    """Raises: BadMessage."""
    try:
        return _TELLS.decode(data)
    except _UNREADABLE as error:
        raise BadMessage(f"no tell in {len(data)} bytes: {error}") from error


def answer_of(call: Control, value: object) -> object:
    """What a call answers, as its caller knows it: a message has no tuples and no structs of its own."""
    if isinstance(call, Health) and isinstance(value, list):
        return tuple(msgspec.convert(value, list[RankHealth]))
    return tuple(value) if isinstance(value, list) else value


def tell_observer(observer: Observer, events: tuple[Started | Waved | Ended, ...]) -> None:
    """What was observed in the other process."""
    for event in events:
        match event:
            case Started(queue_s=queue_s):
                observer.on_started(queue_s)
            case Waved(size=size, steps=steps, seconds=seconds):
                observer.on_wave(size, steps, seconds)
            case Ended(outcome=outcome, seconds=seconds):
                observer.on_ended(outcome, seconds)


def without_bytes(outcome: Terminal) -> Terminal:
    """`outcome` as an observer gets it from another process."""
    return (
        replace(outcome, output=replace(outcome.output, data=b""))
        if isinstance(outcome, Completed)
        else outcome
    )
