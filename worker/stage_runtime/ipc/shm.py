"""Large bytes from a rank to the engine through shared memory, in blocks that are used again.

The sender makes a segment: a file in /dev/shm, whose size bounds it, that never has a name. It hands the open file to
its receiver through a pipe for files. So nobody has to remove anything: when all who have it are gone, however they
ended, the kernel takes it back. A segment is one block behind a header of three numbers:

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
import secrets
import struct
import time
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_runtime.core.errors import OutOfMemory
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.messages import ShmRef

BUDGET_BYTES: Final = 2 << 30
"""What one sender may hold, unless told otherwise."""

PATIENCE_S: Final = 5.0
"""How long a sender waits for the receiver to free a block."""

FOLDER: Final = Path("/dev/shm")
HEADER_BYTES: Final = mmap.PAGESIZE
SMALLEST: Final = 64 << 10
WASTEFUL: Final = 4
"""A free block is not taken for data that would fit into one of a quarter of its size, if there is room for that."""

_NO_ROOM: Final = (
    *(errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ETOOMANYREFS),
)
"""The file system is full, or what this user or this process may take of it is used up; or too many files are open, or
on their way to a receiver that doesn't take them."""

_NUMBER: Final = struct.Struct("=Q")
_USE, _FREED, _RETIRED = 0, 64, 128  # a cache line each
_ROOM: Final = attrgetter("room")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


def check_folder(folder: Path = FOLDER) -> None:
    """Raises: SpecError when no segment can be made there at all, however small: every large result would fail."""
    try:
        os.close(_nameless(folder))
    except OSError as error:
        expected = "a folder for shared memory, such as a tmpfs, that this user may write to"
        raise SpecError([Fault(str(folder), expected, error.strerror or str(error))]) from error


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
        file_pipe: FilePipe,
        rank: int,
        *,
        patience_s: float = PATIENCE_S,
        budget_bytes: int = BUDGET_BYTES,
        folder: Path = FOLDER,
    ) -> None:
        """Segments go through `file_pipe`, which several may use. `budget_bytes` bounds what this one takes."""
        self._file_pipe = file_pipe
        self._prefix = f"{rank}-{secrets.token_hex(4)}-"
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
            (one for one in self._segments if one.room >= size and one.free), key=_ROOM, default=None
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
        for one in sorted(self._segments, key=_ROOM):
            if excess > 0 and one.free:
                excess -= one.room
                one.give_back()
                self._segments.remove(one)
                retired = True
        return retired

    def _make(self, room: int) -> _Segment:
        """A new segment. Raises: OSError when there is no memory for it: now, not by SIGBUS at the first touch."""
        self._made += 1
        name = f"{self._prefix}{self._made}"
        size = HEADER_BYTES + room
        fd = _nameless(self._folder)
        try:
            os.posix_fallocate(fd, 0, size)
            segment = _Segment(name, fd, size)
            self._file_pipe.push(name, fd)
        finally:
            os.close(fd)
        self._segments.append(segment)
        return segment


class Receiver:
    """The engine's side. One thread uses it."""

    def __init__(self) -> None:
        self._file_pipes: list[FilePipe] = []
        self._arrived: dict[str, int] = {}
        """Open files of segments that nothing was taken from yet."""
        self._segments: dict[str, _Segment] = {}
        self._fence = Lock()

    def file_pipe(self) -> FilePipe:
        """The far end of a new pipe for files, for a process that is to send. The caller closes it once that has it."""
        near, far = FilePipe.pair()
        self._file_pipes.append(near)
        return far

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

    def close(self) -> None:
        """Let go of everything, taken or not. The senders have ended. Idempotent."""
        self._pull()
        for file_pipe in self._file_pipes:
            file_pipe.close()
        for file in self._arrived.values():
            os.close(file)
        for one in self._segments.values():
            one.close()
        self._file_pipes.clear()
        self._arrived.clear()
        self._segments.clear()

    def _checked(self, ref: ShmRef) -> _Segment:
        segment = self._segments.get(ref.name) or self._attach(ref.name)
        if ref.offset != HEADER_BYTES or not 0 <= ref.size <= segment.room:
            raise BadMessage(f"{ref.size} bytes at {ref.offset} are not in the block of {ref.name}")
        if segment[_USE] != ref.use or segment[_FREED] == ref.use:
            raise BadMessage(f"use {ref.use} of {ref.name} was freed already, or never told")
        return segment

    def _attach(self, name: str) -> _Segment:
        self._let_go_of_retired()
        self._pull()  # a segment is in the pipe before anybody tells of it
        fd = self._arrived.pop(name, None)
        if fd is None:
            raise BadMessage(f"no segment {name[:100]!r} has come")
        try:
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

    def _pull(self) -> None:
        for file_pipe in self._file_pipes:
            self._arrived.update(file_pipe.pull())

    def _let_go_of_retired(self) -> None:
        """What a sender gave up is replaced by the next segment, so there is no need to look at other times."""
        for name in [name for name, one in self._segments.items() if one[_RETIRED]]:
            self._segments.pop(name).close()


def _nameless(folder: Path) -> int:
    """A new empty file there. Raises: OSError."""
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _room_for(size: int) -> int:
    """The size class: four to a power of two, so that at most a fifth of a block lies idle."""
    step = max(SMALLEST, 1 << max(0, size.bit_length() - 3))
    return max(step, -(-size // step) * step)
