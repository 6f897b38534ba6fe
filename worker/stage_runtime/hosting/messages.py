"""What a stage's two processes say to each other: tagged structs, one union each way.

Asks go from the client's process to the engine's, tells come back. An ask that wants an answer has a number.
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
from stage_runtime.ipc.codec import decoder
from stage_runtime.ipc.messages import Parcel
from stage_runtime.sched.base import Snapshot

PROTOCOL: Final = 2
"""Version of these messages; a child of another version is refused."""


# From the client's process to the engine's


class Setup(Struct, frozen=True, tag="setup", kw_only=True):
    """All the child has to know to build its engine."""

    factory: str
    """`module:function`, which makes the engine of `argument`, not started."""
    argument: bytes
    log_as: str | None = None
    """Name of the stage in log lines; None leaves logging as Python has it."""


class Submit(Struct, frozen=True, tag="submit"):
    """Admit all of these, or none."""

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
    """A control call; None: count what is held for requests."""

    number: int
    call: Control | None


class Observe(Struct, frozen=True, tag="observe"):
    """Tell of waves and requests from now on."""


class CloseAdmission(Struct, frozen=True, tag="close_admission"):
    """Admit nothing from now on; finish what is there."""


class Stop(Struct, frozen=True, tag="stop"):
    """End what still runs, within so many seconds, and exit."""

    patience_s: float


Asks = Setup | Submit | TakeBack | Abort | Ask | Observe | CloseAdmission | Stop


# From the engine's process to the client's


class Hello(Struct, frozen=True, tag="hello"):
    """The child is there."""

    protocol: int = PROTOCOL


class Answered(Struct, frozen=True, tag="answered"):
    """The answer to a submission, which is None, or to a call; or the error with which it was refused."""

    number: int
    value: object = None
    error: Raised | None = None


class Status(Struct, frozen=True):
    """How the engine is, at one moment."""

    phase: Phase
    progress: Progress
    load: Snapshot
    capability: Capability | None = None
    """Of the loaded model."""
    starting: str = ""
    """What its start is doing, as JSON of a `StartProgress`; empty where nothing is told."""


class Event(Struct, frozen=True):
    """An outcome of a request of the submission `number`; large bytes of it lie where `parcel` says."""

    number: int
    outcome: Outcome
    parcel: Parcel | None = None


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


Observed = Started | Waved | Ended


class Told(Struct, frozen=True, tag="told", kw_only=True):
    """What became of what was asked, in the order in which it is to be heard: whoever hears of an end finds it counted.

    A status comes when it changes, and many times a second while there is work.
    """

    observed: tuple[Observed, ...] = ()
    status: Status | None = None
    events: tuple[Event, ...] = ()


class Leaving(Struct, frozen=True, tag="leaving"):
    """The child's last words: what its engine died of; None when it ended in order."""

    death: Raised | None = None


Tells = Hello | Answered | Told | Leaving

decode_ask: Final = decoder(Asks, "ask")
decode_tell: Final = decoder(Tells, "tell")


def answer_of(call: Control | None, value: object) -> object:
    """What a call answers, as its caller knows it: a message has no tuples and no structs of its own."""
    if isinstance(call, Health) and isinstance(value, list):
        return tuple(msgspec.convert(value, list[RankHealth]))
    return tuple(value) if isinstance(value, list) else value


def tell_observer(observer: Observer, observed: tuple[Observed, ...]) -> None:
    """What was observed in the other process."""
    for one in observed:
        match one:
            case Started(queue_s=queue_s):
                observer.on_started(queue_s)
            case Waved(size=size, steps=steps, seconds=seconds):
                observer.on_wave(size, steps, seconds)
            case Ended(outcome=outcome, seconds=seconds):
                observer.on_ended(outcome, seconds)


def without_bytes(outcome: Terminal) -> Terminal:
    """`outcome` as an observer gets it from another process."""
    if not isinstance(outcome, Completed):
        return outcome
    return replace(outcome, output=replace(outcome.output, data=b""))
