"""What an mp executor and its ranks say to each other: tagged structs, one union each way.

Commands go to all ranks, in one order. Every rank reads all of them, and each says whom it concerns: that keeps ranks
of one group in step without asking each other. Replies carry the rank, and the wave or call that they answer.

Bytes above `INLINE_BYTES` don't travel in a message: a `Parcel` says where in shared memory they lie.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import Raised
from stage_runtime.core.outcome import ExecutorOutcome, Failed
from stage_runtime.core.wave import Wave

PROTOCOL: Final = 1
"""Version of these messages; a rank of another version is refused."""

INLINE_BYTES: Final = 64 << 10
"""Up to so many bytes a result travels inside its message."""


class ShmRef(Struct, frozen=True):
    """A block of shared memory: `size` bytes at `offset` in the segment `name`."""

    name: str
    offset: int
    size: int
    use: int = 0
    """Which use of the block this is: who is late can't read or free what has been put there since."""


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor on the wire: raw bytes in C order, so that any dtype passes, bfloat16 too. Names are torch's."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    ref: ShmRef | None = None
    """Where the bytes are when they are not in `data`."""


# From the engine to the ranks


class Setup(Struct, frozen=True, tag="setup", kw_only=True):
    """All a rank has to know to load its part and meet the others."""

    config: bytes
    """The stage's config, as its file has it."""
    epoch: int = 0


class Meet(Struct, frozen=True, tag="meet"):
    """Where the ranks meet: host and port of the rendezvous that rank 0 serves."""

    store: tuple[str, int]


class Run(Struct, frozen=True, tag="run", kw_only=True):
    """Clean up, take in, and run: one tick in step mode, to the end of all members in request mode.

    `wave.scheduled_ids` are only of copies of the model that were idle; `places` says on which copy (index on the
    data axis) each new request runs.
    """

    wave: Wave
    places: dict[str, int]


class Ask(Struct, frozen=True, tag="ask"):
    """A control call. Every rank answers."""

    call_id: int
    call: Control


class Stop(Struct, frozen=True, tag="stop"):
    """Let go of everything and exit 0."""


class Refused(Struct, frozen=True, tag="refused"):
    """The engine wants none of this rank, or of this agent: it is of another life. It exits."""

    why: str


Command = Setup | Meet | Run | Ask | Stop | Refused


# From a rank to the engine


class Hello(Struct, frozen=True, tag="hello", kw_only=True):
    """A rank is there."""

    rank: int
    pid: int
    epoch: int
    digest: str
    """Of the topology that it derived."""
    protocol: int = PROTOCOL


class Serving(Struct, frozen=True, tag="serving"):
    """Rank 0 serves the rendezvous at this host and port."""

    rank: int
    store: tuple[str, int]


class Starting(Struct, frozen=True, tag="starting"):
    """What a rank does now on its way to ready: what it is stuck in, if it never gets there."""

    rank: int
    doing: str
    progress: str = ""
    """How far it is, as JSON of a `StartProgress`; empty where there is nothing to count."""


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded and the group has met."""

    rank: int
    capability: Capability


class Parcel(Struct, frozen=True):
    """The bytes of an outcome's output, left out of it since they are large.

    `preview` is False for a result, True for the picture of a `Progressed`.
    """

    request_id: str
    preview: bool
    ref: ShmRef


class Ticked(Struct, frozen=True, tag="ticked", kw_only=True):
    """Outcomes of one tick, from the rank that answers for its copy of the model. The wave's last one says `idle`."""

    rank: int
    wave_id: int
    """Of the last `Run` that the rank had read when the tick began."""
    outcomes: tuple[ExecutorOutcome, ...]
    parcels: tuple[Parcel, ...] = ()
    idle: bool = False
    """The copy waits for its next `Run`."""


class OutputReady(Struct, frozen=True, tag="output_ready", kw_only=True):
    """The output of a request that was `Computed`, or why there is none. May overtake the `Ticked` that says so."""

    rank: int
    wave_id: int
    """Of the `Run` with which the request came: tells it from a later one under the same id."""
    outcome: ExecutorOutcome
    parcel: Parcel | None = None


class Answered(Struct, frozen=True, tag="answered", kw_only=True):
    """A rank's answer to an `Ask`: a value, or its error."""

    rank: int
    call_id: int
    value: object = None
    error: Failed | None = None


class Dying(Struct, frozen=True, tag="dying", kw_only=True):
    """A rank's last words. A rank named in the error is the one that it blames."""

    rank: int
    error: Raised


# From the agent of another pod to the engine; `rank` is the first one of its pod


class Attending(Struct, frozen=True, tag="attending"):
    """The agent is there, and starts the ranks of its pod."""

    rank: int


class Ended(Struct, frozen=True, tag="ended", kw_only=True):
    """The process of rank `who` in the agent's pod has ended; a negative code is a signal."""

    rank: int
    who: int
    code: int


class Frozen(Struct, frozen=True, tag="frozen", kw_only=True):
    """The process of rank `who` in the agent's pod is stopped (SIGSTOP, a debugger), or runs again."""

    rank: int
    who: int
    is_frozen: bool


Reply = (
    Hello | Serving | Starting | Ready | Ticked | OutputReady | Answered | Dying | Attending | Ended | Frozen
)
