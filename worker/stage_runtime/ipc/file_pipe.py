"""A pipe for open files: through it a process hands them to the one that started it.

It is a pair of sockets that was there before the process. So it needs no name in any file system, and no right to look
into another process; and what lies in it stays there when its sender is killed, and is gone when both ends are.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Final, Self

LONGEST_LABEL: Final = 200

_FILE: Final = struct.Struct("i")
_ROOM: Final = socket.CMSG_SPACE(_FILE.size)


class FilePipe:
    """One end. Never waits. `push` may be called from several threads."""

    def __init__(self, end: socket.socket) -> None:
        """Use `pair` or `adopt`."""
        end.setblocking(False)
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Both ends. No process that is started has one, unless it is passed on."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(near), cls(far)

    @classmethod
    def adopt(cls, number: int) -> Self:
        """The end that this process was started with. Raises: OSError when the descriptor is none."""
        end = socket.socket(fileno=number)
        end.set_inheritable(False)
        return cls(end)

    @property
    def number(self) -> int:
        """Its file descriptor, to start a process with."""
        return self._end.fileno()

    def push(self, label: str, file: int) -> None:
        """Hand over the open file of this descriptor, which may be closed then.

        Raises: BlockingIOError while so many lie in it that there is no room; OSError when the other end is gone.
        """
        socket.send_fds(self._end, [label.encode()], [file])

    def pull(self) -> dict[str, int]:
        """What lies in it: a new descriptor for each label. The caller closes them."""
        files: dict[str, int] = {}
        with suppress(OSError):  # there is no more, or the other end is gone
            while True:
                # NB: `socket.recv_fds` drops its flags in some Pythons, and other processes would inherit the files.
                label, received, _, _ = self._end.recvmsg(LONGEST_LABEL, _ROOM, socket.MSG_CMSG_CLOEXEC)
                if not label:
                    break
                for _, _, data in received:
                    (files[label.decode()],) = _FILE.unpack_from(data)
        return files

    def close(self) -> None:
        """Idempotent. What lies in it can still be pulled at the other end."""
        self._end.close()
