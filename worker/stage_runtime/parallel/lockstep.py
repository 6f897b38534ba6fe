"""Keeps the ranks of a group together: they exchange frames, and each frame says what its rank is about to do.

A frame is one gather of a fixed size; what does not fit follows in a second one. Ranks that went apart, because one
of them failed where the others did not, meet in a frame with different intents, and all of them die of it at once
instead of waiting for each other.

Frame on the wire, produced by each rank and consumed by all, (FRAME,) uint8: length of the message in bytes (int64, of
this machine's byte order, which all ranks of a replica share), then the message's first FRAME − 8 bytes. Second
gather, when some message is longer: (longest − (FRAME − 8),) uint8, the messages' remainders.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError, InternalError
from stage_runtime.parallel.collectives import Collectives

FRAME: Final = 16 * 1024
"""Bytes: up to here the size costs little beside the round trip."""
ALIGNMENT: Final = 64
"""Of payloads, in bytes: kernels give other last bits for data that is not aligned."""

_LENGTH: Final = struct.Struct("=q")
ROOM: Final = FRAME - _LENGTH.size


MOST_ERROR: Final = 300
"""Characters of an error in a frame."""


def in_words(error: Exception) -> str:
    """Kind and message of an error, cut to fit a frame."""
    return words_of(error)[:MOST_ERROR]


class Frame(NamedTuple):
    """What one rank said: facts as JSON holds them, and bytes beside them."""

    intent: str
    facts: Any
    payload: torch.Tensor
    """(n,) uint8 on the CPU."""


class Lockstep:
    """One rank's side. Each method is called by every rank of the group at the same place of its plan."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def agree(self, position: int) -> int:
        """How many commands the leader has read, in every rank; `position` is how many this one has.

        Called between two ticks, so that all act on the same commands before the same tick.
        """
        return int(self.exchange("agree", position)[0].facts)

    def vote(self, ended: Mapping[str, str]) -> None:
        """Requests that ended here in this tick, with the error that each failed with ("": it did not fail).

        Called by a rank where some ended. Raises: EngineDeadError naming the rank where one failed that others did
        not fail; unanimous failures are the requests' own.
        """
        frames = self.exchange("vote", sorted((name, error[:200]) for name, error in ended.items()))
        failed = [{name for name, error in frame.facts if error} for frame in frames]
        for index, theirs in enumerate(failed):
            for name in sorted(theirs):
                if not all(name in other for other in failed):
                    error = dict(frames[index].facts)[name]
                    self._die(index, f"request {name} failed on rank {{rank}} alone: {error}")
        if any(frame.facts != frames[0].facts and _names(frame) != _names(frames[0]) for frame in frames):
            self._die(None, "the ranks ended different requests in one tick")

    def all_say(self, verdict: bool) -> bool:
        """True when every rank says so."""
        return all(frame.facts for frame in self.exchange("verdict", verdict))

    def any_failed(self, failed: bool) -> bool:
        """True when any rank says so; asked after each joint call that all of them make."""
        return any(frame.facts for frame in self.exchange("joint call", failed))

    def exchange(self, intent: str, facts: Any, payload: Sequence[torch.Tensor] = ()) -> list[Frame]:
        """What every rank brought, in the order of the group. `payload`: CPU tensors of any dtype, contiguous.

        Tensors are laid one after the other, each at a multiple of ALIGNMENT bytes; `offsets` gives where.
        Raises: EngineDeadError when the ranks came with different intents; what `Collectives.gather` raises.
        """
        said = json.dumps([intent, facts], separators=(",", ":")).encode()
        frames = [_unpack(message) for message in self._gather(_pack(said, payload))]
        if any(frame.intent != intent for frame in frames):
            self._apart(frames)
        return frames

    def close(self) -> None:
        """Let go of the transports."""
        self.collectives.close()

    def _gather(self, message: torch.Tensor) -> list[torch.Tensor]:
        """The message of each rank, (its length,) uint8."""
        mine = torch.zeros(FRAME, dtype=torch.uint8)
        mine[: _LENGTH.size] = _bytes(_LENGTH.pack(len(message)))
        first = message[:ROOM]
        mine[_LENGTH.size : _LENGTH.size + len(first)] = first
        frames = self.collectives.gather(mine)
        lengths = [_LENGTH.unpack(_as_bytes(frame[: _LENGTH.size]))[0] for frame in frames]
        longest = max(lengths)
        if longest <= ROOM:
            return [frame[_LENGTH.size : _LENGTH.size + n] for frame, n in zip(frames, lengths, strict=True)]
        rest = torch.zeros(longest - ROOM, dtype=torch.uint8)
        rest[: max(len(message) - ROOM, 0)] = message[ROOM:]
        remainders = self.collectives.gather(rest)
        return [
            torch.cat([frame[_LENGTH.size :], remainder])[:n]
            for frame, remainder, n in zip(frames, remainders, lengths, strict=True)
        ]

    def _apart(self, frames: Sequence[Frame]) -> None:
        """One rank is somewhere else. If it votes, it says why: something failed there."""
        for index, frame in enumerate(frames):
            if frame.intent == "vote":
                for name, error in frame.facts:
                    if error:
                        self._die(index, f"request {name} failed on rank {{rank}} alone: {error}")
        went = ", ".join(
            f"rank {rank}: {frame.intent}" for rank, frame in zip(self.collectives.ranks, frames, strict=True)
        )
        self._die(None, f"the ranks went apart ({went})")

    def _die(self, index: int | None, message: str) -> None:
        rank = None if index is None else self.collectives.ranks[index]
        raise EngineDeadError(message.format(rank=rank) if rank is not None else message, rank=rank)


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where in a payload each of several tensors lies, in bytes, by their sizes in bytes; the end as the last."""
    at, found = 0, []
    for size in sizes:
        found.append(at)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return [*found, at]


def _names(frame: Frame) -> list[str]:
    return [name for name, _ in frame.facts]


def _pack(said: bytes, payload: Sequence[torch.Tensor]) -> torch.Tensor:
    """Length of what is said and length of the payload, what is said, the payload."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in payload]
    places = offsets(sizes)
    start = 16 + len(said)
    message = torch.empty(start + places[-1], dtype=torch.uint8)
    message[:16] = _bytes(struct.pack("=qq", len(said), places[-1]))
    message[16:start] = _bytes(said)
    for tensor, at, size in zip(payload, places, sizes, strict=False):
        message[start + at : start + at + size] = tensor.reshape(-1).view(torch.uint8)
    return message


def _unpack(message: torch.Tensor) -> Frame:
    said, size = struct.unpack("=qq", _as_bytes(message[:16]))
    if len(message) != 16 + said + size:
        raise InternalError(f"a frame of {len(message)} bytes says it has {16 + said + size}")
    intent, facts = json.loads(_as_bytes(message[16 : 16 + said]))
    # Copied, so that it begins at an aligned address.
    return Frame(intent, facts, message[16 + said :].clone())


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())
