"""Large bytes from a rank to the engine through POSIX shared memory, in blocks that are used again.

The sender makes a segment, named after its receiver. The receiver unlinks the name as soon as it has the segment, so
that nothing is left when both are killed; names that nobody came for are swept by a later start. A segment is one
block behind a header of three numbers:

    use      written by the sender: how often the block has been filled
    freed    written by the receiver: the last use that it is done with; the block is free when both are equal
    retired  written by the sender: it has given the segment up

Each number has one writer and only grows, so neither side needs a lock, and a killed one leaves nothing half done that
the other could trip over: a filling that never ended was never told.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from stage_runtime.core.errors import OutOfMemory
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.owner import Owner, owner_of

__all__ = ["BUDGET_BYTES", "PATIENCE_S", "Owner", "Receiver", "Sender", "ShmFull"]

BUDGET_BYTES: Final = 2 << 30
"""What one sender may hold, unless told otherwise."""

PATIENCE_S: Final = 5.0
"""How long a sender waits for the receiver to free a block."""

FOLDER: Final = Path("/dev/shm")
HEADER_BYTES: Final = mmap.PAGESIZE
SMALLEST: Final = 64 << 10
WASTEFUL: Final = 4
"""A free block is not taken for data that would fit into one of a quarter of its size, if there is room for that."""

_NO_ROOM: Final = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
"""The file system is full, or what this user or this process may take of it is used up."""

_NUMBER: Final = struct.Struct("=Q")
_USE, _FREED, _RETIRED = 0, 64, 128  # a cache line each
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


class ShmFull(OutOfMemory):
    """The bytes found no room in shared memory in time; smaller ones may, or the same ones later."""


class _Segment:
    """A mapped segment. `room`: bytes of its block."""

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self.room = size - HEADER_BYTES
        self.memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def __getitem__(self, field: int) -> int:
        return int(_NUMBER.unpack_from(self.memory, field)[0])

    def __setitem__(self, field: int, number: int) -> None:
        _NUMBER.pack_into(self.memory, field, number)

    @property
    def free(self) -> bool:
        return self[_USE] == self[_FREED]

    def give_back(self) -> None:
        """Mark it as retired and free its memory now, although the other side still maps it."""
        self[_RETIRED] = 1
        self.memory.madvise(mmap.MADV_REMOVE, HEADER_BYTES, self.room)
        self.memory.close()

    def close(self) -> None:
        self.memory.close()


class Sender:
    """A rank's side, for one of its threads."""

    def __init__(
        self,
        owner: Owner,
        rank: int,
        *,
        patience_s: float = PATIENCE_S,
        budget_bytes: int = BUDGET_BYTES,
        folder: Path = FOLDER,
    ) -> None:
        """Segments go to `owner`. `budget_bytes` bounds what all of them take together."""
        self._prefix = f"{owner.prefix}{rank}-{secrets.token_hex(4)}-"
        self._patience_s = patience_s
        self._budget_bytes = budget_bytes
        self._folder = folder
        self._segments: list[_Segment] = []
        self._made = 0

    @property
    def held_bytes(self) -> int:
        """Size of all blocks, filled or free."""
        return sum(one.room for one in self._segments)

    @property
    def in_flight(self) -> int:
        """Blocks that the receiver hasn't freed yet."""
        return sum(not one.free for one in self._segments)

    def place(self, data: bytes | memoryview) -> ShmRef:
        """Copy `data` into a block; it is the receiver's until it frees it.

        Waits for a block while the receiver may still free one, up to the patience. Raises: ShmFull.
        """
        view = memoryview(data).cast("B")
        block = self._block(len(view))
        block.memory[HEADER_BYTES : HEADER_BYTES + len(view)] = view
        use = block[_USE] + 1
        block[_USE] = use
        return ShmRef(block.name, HEADER_BYTES, len(view), use)

    def close(self) -> None:
        """Let go of everything. What was placed can still be taken. Idempotent."""
        for one in self._segments:
            one.close()
        self._segments.clear()

    def _block(self, size: int) -> _Segment:
        """A free block for `size` bytes."""
        until_s = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            block, why = self._try(size)
            if block is not None:
                return block
            if not self.in_flight:
                raise ShmFull(f"no room for {size} bytes in shared memory: {why}")
            if time.monotonic() > until_s:
                raise ShmFull(
                    f"no room for {size} bytes in shared memory for {self._patience_s:g} s: {why}, "
                    f"{self.in_flight} blocks are still being taken"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _try(self, size: int) -> tuple[_Segment | None, str]:
        """A free block or a new one, or why there is none."""
        room = _room_for(size)
        fitting = min(
            (one for one in self._segments if one.room >= size and one.free), key=_room, default=None
        )
        if fitting is not None and fitting.room <= room * WASTEFUL:
            return fitting, ""
        if fitting is None and room <= self._budget_bytes:
            self._retire(self.held_bytes + room - self._budget_bytes)
        if self.held_bytes + room > self._budget_bytes:
            return fitting, f"the budget is {self._budget_bytes} bytes"
        try:
            return self._make(room), ""
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if fitting is None and self._retire(room):
                return self._try(size)
            return fitting, error.strerror or str(error)

    def _retire(self, excess: int) -> bool:
        """Give up free blocks of together `excess` bytes, the smallest first. False when there was none to give up."""
        retired = False
        for one in sorted(self._segments, key=_room):
            if excess > 0 and one.free:
                excess -= one.room
                one.give_back()
                self._segments.remove(one)
                retired = True
        return retired

    def _make(self, room: int) -> _Segment:
        """A new segment. Raises: OSError when there is no memory for it: now, not by SIGBUS at the first touch."""
        self._made += 1
        path = self._folder / f"{self._prefix}{self._made}"
        size = HEADER_BYTES + room
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            segment = _Segment(path.name, fd, size)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)
        self._segments.append(segment)
        return segment


class Receiver:
    """The engine's side. One thread uses it, apart from `sweep_own`."""

    def __init__(self, owner: Owner, *, folder: Path = FOLDER) -> None:
        """`owner`: who senders name their segments after."""
        self._owner = owner
        self._folder = folder
        self._names = re.compile(re.escape(owner.prefix) + r"\d+-[0-9a-f]+-\d+")
        self._segments: dict[str, _Segment] = {}
        self._fence = Lock()

    def take(self, ref: ShmRef) -> bytes:
        """The bytes that `ref` names, as the caller's own; the block is free then.

        Raises: BadMessage when there is no such block, or it was freed already.
        """
        segment = self._checked(ref)
        # Leaving a lock and entering it again keeps the copy before the freeing on processors that reorder memory.
        with self._fence:
            data = segment.memory[ref.offset : ref.offset + ref.size]
        with self._fence:
            segment[_FREED] = ref.use
        return data

    def drop(self, ref: ShmRef) -> None:
        """Free the block without reading it. Raises: BadMessage, as `take` does."""
        self._checked(ref)[_FREED] = ref.use

    def sweep(self) -> None:
        """Remove segments whose owners are dead, as far as this user may."""
        for name in _listed(self._folder):
            owner = owner_of(name)
            if owner is not None and owner.dead:
                _unlink(self._folder / name)

    def sweep_own(self, rank: int | None = None) -> None:
        """Remove the segments of a rank, or of all, that were never taken: those who made them are dead."""
        prefix = self._owner.prefix if rank is None else f"{self._owner.prefix}{rank}-"
        for name in _listed(self._folder):
            if name.startswith(prefix):
                _unlink(self._folder / name)

    def close(self) -> None:
        """Let go of everything, taken or not. The senders have ended. Idempotent."""
        self.sweep_own()
        for one in self._segments.values():
            one.close()
        self._segments.clear()

    def _checked(self, ref: ShmRef) -> _Segment:
        segment = self._segments.get(ref.name) or self._attach(ref.name)
        if ref.offset != HEADER_BYTES or not 0 <= ref.size <= segment.room:
            raise BadMessage(f"{ref.size} bytes at {ref.offset} are not in the block of {ref.name}")
        if segment[_USE] != ref.use or segment[_FREED] == ref.use:
            raise BadMessage(f"use {ref.use} of {ref.name} was freed already, or never told")
        return segment

    def _attach(self, name: str) -> _Segment:
        if not self._names.fullmatch(name):
            raise BadMessage(f"{name[:100]!r} is no segment for this process")
        self._let_go_of_retired()
        path = self._folder / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise BadMessage(f"the segment {name} can't be opened: {error.strerror}") from error
        try:
            _unlink(path)
            size = os.fstat(fd).st_size
            if size <= HEADER_BYTES:
                raise BadMessage(f"the segment {name} has {size} bytes only")
            segment = _Segment(name, fd, size)
        except (OSError, ValueError) as error:
            raise BadMessage(f"the segment {name} can't be mapped: {error}") from error
        finally:
            os.close(fd)
        self._segments[name] = segment
        return segment

    def _let_go_of_retired(self) -> None:
        """What a sender gave up is replaced by the next segment, so there is no need to look at other times."""
        for name in [name for name, one in self._segments.items() if one[_RETIRED]]:
            self._segments.pop(name).close()


def _room(segment: _Segment) -> int:
    return segment.room


def _room_for(size: int) -> int:
    """The size class: four to a power of two, so that at most a fifth of a block lies idle."""
    step = max(SMALLEST, 1 << max(0, size.bit_length() - 3))
    return max(step, -(-size // step) * step)


def _listed(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _unlink(path: Path) -> None:
    with suppress(OSError):  # somebody else was faster, or it is another user's
        path.unlink()
