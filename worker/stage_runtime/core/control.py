"""Calls that steer running work; they pass through the engine's loop, between two ticks.

Every rank carries out every call. What comes back is one value for calls about the whole engine, and for the others
one value a rank, in rank order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

SleepLevel = Literal[1, 2]
TRACE_PIECE_BYTES: Final = 4 << 20


class StopEarly(Struct, frozen=True, tag="stop_early"):
    """Skip the denoise steps of a running request after the one it is in, and decode what it has. Answer: None."""

    request_id: str


class Outstanding(Struct, frozen=True, tag="outstanding"):
    """Count what the runners still hold, by kind: scripts, recordings, parcels. Answer: a dict, all 0 at rest."""


class Pause(Struct, frozen=True, tag="pause"):
    """A barrier: when it is answered, no rank works, and running requests stay where they are. Idempotent.

    Nothing is aborted, and a result that is there already is delivered. Requests may still join the line.
    """


class Resume(Struct, frozen=True, tag="resume"):
    """Go on after a pause. Idempotent. Raises InvalidRequest while the weights sleep."""


class Sleep(Struct, frozen=True, tag="sleep"):
    """Pause, and free device memory. Level 1 keeps the weights in host memory, level 2 drops them.

    Answer: bytes of weights that left the device, by rank. Running requests stay where they are.
    """

    level: SleepLevel = 1


class Wake(Struct, frozen=True, tag="wake"):
    """Have the weights back on the device, bit for bit as they were, and go on. Idempotent.

    Answer: bytes of weights that came back, by rank.
    """


class ProfileStart(Struct, frozen=True, tag="profile_start"):
    """Record a torch profiler trace on every rank, to be written into `folder` on the rank's machine."""

    folder: str


class ProfileStop(Struct, frozen=True, tag="profile_stop"):
    """End the recording. Answer: path of the trace file, by rank. Raises InvalidRequest when none is under way."""


class ReadTrace(Struct, frozen=True, tag="read_trace"):
    """Read on in the trace that `rank` has written last, which may lie on another machine.

    Answer: by rank, at most `TRACE_PIECE_BYTES` from `offset` on; nothing after its end, and from all other ranks.
    Raises InvalidRequest when none has been written.
    """

    rank: int
    offset: int


class Health(Struct, frozen=True, tag="health"):
    """Ask every rank whether it and its device are well. Answer: a `RankHealth` by rank."""


class Invoke(Struct, frozen=True, tag="invoke"):
    """Call a method that the worker extension adds. Answer: what it returns, by rank.

    Arguments and answers are plain values, lists and dicts of them, and tensors as `worker.tensor_wire` packs them.
    """

    method: str
    arguments: dict[str, object] = {}


Control = (
    StopEarly
    | Outstanding
    | Pause
    | Resume
    | Sleep
    | Wake
    | ProfileStart
    | ProfileStop
    | ReadTrace
    | Health
    | Invoke
)


class RankHealth(Struct, frozen=True, kw_only=True):
    """How one rank is."""

    rank: int
    pid: int
    device: str
    allocated_bytes: int
    """Memory of weights and tensors on the device, as the device's allocator counts it; on a CPU the weights'."""
    asleep: bool = False
    paused: bool = False


PATIENCE_S: Final = 30.0
"""How long any rank may take to answer a call, on top of the tick that it is in."""

_SLOW: Final[Mapping[type, float]] = {Sleep: 600.0, Wake: 1800.0, ProfileStop: 600.0, Invoke: 600.0}


def patience_s(call: Control) -> float:
    """How long a rank may take over `call`, in seconds: weights are moved and traces written for minutes."""
    return _SLOW.get(type(call), PATIENCE_S)
