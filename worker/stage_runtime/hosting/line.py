"""The line between a stage's two processes: a pair of ZeroMQ sockets, one peer each.

The client's end listens in a private folder, and the folder is gone once the child is connected: nobody else gets in,
and nothing is left behind, however either of them ends.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Final, Self

import zmq

from stage_runtime.ipc.bell import Bell
from stage_runtime.ipc.folder import private_folder

IN_FLIGHT: Final = 256
"""Messages that a socket holds for a peer that doesn't read; what is above waits with its owner."""
TAKEN_AT_ONCE: Final = 256
SOCKET_FILE: Final = "stage"


class Line:
    """One end. One thread uses it; `bell` may be rung from any."""

    def __init__(self, folder: Path | None, address: str, bell: Bell) -> None:
        """Use `listen` or `connect`."""
        self.address: Final = address
        self.bell: Final = bell
        self._folder = folder
        self._outbox: deque[bytes] = deque()
        self._closed = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.sndhwm = self._socket.rcvhwm = IN_FLIGHT
        self._socket.reconnect_ivl = -1  # a connection that broke is the end
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self.bell.fd, zmq.POLLIN)

    @classmethod
    def listen(cls, bell: Bell) -> Self:
        """The client's end, in a new folder that only this user may enter; `bell` ends its waits.

        Raises: OSError, zmq.ZMQError.
        """
        folder = private_folder(None, SOCKET_FILE)
        line = cls(folder, f"ipc://{folder / SOCKET_FILE}", bell)
        try:
            line._socket.bind(line.address)
        except BaseException:
            line.close(0.0)
            raise
        return line

    @classmethod
    def connect(cls, address: str) -> Self:
        """The child's end."""
        line = cls(None, address, Bell())
        line._socket.connect(address)
        return line

    @property
    def has_room(self) -> bool:
        """False while the peer doesn't read: then nothing that can wait should be sent."""
        return not self._outbox

    def send(self, data: bytes) -> None:
        """Send, or keep until there is room. Never waits."""
        self._outbox.append(data)
        self._flush()

    def receive(self, timeout_s: float | None) -> list[bytes]:
        """What has come, some of it; waits for the first, the bell, a watched descriptor, or so many seconds."""
        self._flush()
        if messages := self._take():
            return messages
        self._poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if self._outbox else zmq.POLLIN)
        self._poller.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000)))
        self.bell.silence()
        self._flush()
        return self._take()

    def watch(self, fd: int) -> None:
        """Let `fd` end a wait whenever it is readable."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`, before `fd` is closed."""
        self._poller.unregister(fd)

    def seal(self) -> None:
        """The child is connected: leave no file behind. Idempotent."""
        folder, self._folder = self._folder, None
        if folder is not None:
            (folder / SOCKET_FILE).unlink(missing_ok=True)
            folder.rmdir()

    def close(self, linger_s: float) -> None:
        """Close, waiting at most `linger_s` for what was sent to get out. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.seal()
        self._socket.close(linger=math.ceil(linger_s * 1000))
        self._context.term()

    def _flush(self) -> None:
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], zmq.DONTWAIT)
            except zmq.Again:
                return
            self._outbox.popleft()

    def _take(self) -> list[bytes]:
        messages: list[bytes] = []
        try:
            while len(messages) < TAKEN_AT_ONCE:
                messages.append(self._socket.recv(zmq.DONTWAIT))
        except zmq.Again:
            pass
        return messages
