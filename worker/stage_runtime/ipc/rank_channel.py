"""A rank's end of the channel to its engine: connects once, and says why it can't. ZeroMQ itself tries for ever."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import zmq
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from stage_runtime.core.errors import EngineDeadError, RendezvousTimeout
from stage_runtime.ipc.addresses import dials_ipv6
from stage_runtime.ipc.codec import decode_command, encode
from stage_runtime.ipc.identity import Peer
from stage_runtime.ipc.keys import ClientKeys
from stage_runtime.ipc.messages import Refused
from stage_runtime.ipc.sockets import LINGER_MS, NOW, fd_of, keep_alive, milliseconds, monitor_of, readable

LAST_WORDS_MS: Final = 50
"""The end of a connection is known a moment before the last message that came through it can be read."""

NEVER_MS: Final = 86_400_000
"""A day. To switch connecting again off would also throw away what has come and is not read yet."""

LOOK_MS: Final = 1_000
"""How often a rank that waits for ever looks whether the engine is still there."""

CONNECT_S: Final = 30.0
"""How long a rank tries to reach the engine."""

_REFUSED: Final = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_WATCHED: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | _REFUSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
)
"""What a socket's monitor has to tell while it connects."""

_HANG_UPS: Final = 20
"""An engine that is dialled with a wrong key of its own can't say no: it hangs up. So often, and it is no accident.
What it says to a rank without keys may be lost, too, when it hangs up at once."""


class RankChannel:
    """A rank's end, for one of its threads."""

    def __init__(  # noqa: PLR0913 - what a connection is made with
        self,
        address: str,
        rank: int,
        *,
        keys: ClientKeys | None = None,
        life: str = "",
        lane: str = "",
        patience_s: float = CONNECT_S,
        decode: Callable[[bytes], Any] = decode_command,
    ) -> None:
        """Connect to the engine at `address`, and wait until that is done: it stops listening once all are there.

        `lane` tells a further thread of the rank from its main one; the engine sends to the main one only. Over TCP
        the engine may come up later, within `patience_s`. Raises: EngineDeadError when the engine refuses this rank;
        RendezvousTimeout when none can be reached.
        """
        self._gone = False
        self._closed = False
        self._watches = False
        self._decode = decode
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = monitor_of(self._socket, _WATCHED)
        try:
            self._socket.linger = LINGER_MS
            self._socket.rcvtimeo = LOOK_MS
            self._socket.identity = Peer(rank, life, lane).identity
            if address.startswith("tcp:"):
                keep_alive(self._socket)
                self._socket.ipv6 = dials_ipv6(address)
            else:
                self._socket.reconnect_ivl = NEVER_MS
            if keys is not None:
                self._socket.curve_secretkey = keys.secret
                self._socket.curve_publickey = keys.public
                self._socket.curve_serverkey = keys.server_public
            self._socket.connect(address)
            _until_connected(self._monitor, address, patience_s)
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._fd = fd_of(self._socket)
        self._poll.register(self._fd, select.POLLIN)
        self._monitor_fd = fd_of(self._monitor)
        self._poll.register(self._monitor_fd, select.POLLIN)
        self._see_end()

    @property
    def gone(self) -> bool:
        """The engine is known to be gone; nothing comes any more."""
        return self._gone

    def send(self, reply: Struct) -> None:
        """Send `reply`, waiting only if the engine has not read for a thousand messages. Raises: BadMessage."""
        self._socket.send(encode(reply))

    def receive(self, timeout_s: float | None) -> Any:
        """The next command, waiting for `timeout_s` (None: no limit) or until a watched file descriptor is readable.

        None: there is none, or the engine is gone. Raises: BadMessage; EngineDeadError when the engine wants none of
        this rank.
        """
        data = self._next() if timeout_s is None and not self._watches else self._next_until(timeout_s)
        if data is None:
            return None
        command = self._decode(data)
        if isinstance(command, Refused):
            raise EngineDeadError(f"the engine refuses this rank: {command.why}")
        return command

    def _next(self) -> bytes | None:
        """The next message, or None when the engine is gone. Waits inside ZeroMQ, which costs least."""
        while True:
            try:
                return self._socket.recv()
            except zmq.Again:
                self._see_end()
                if self._gone and not readable(self._socket):
                    return None

    def _next_until(self, timeout_s: float | None) -> bytes | None:
        """The next message; None when there is none in time, a watched descriptor is ready, or the engine is gone."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not readable(self._socket):
            if self._gone:
                return None
            ready = self._poll.poll(None if until_s is None else milliseconds(until_s))
            if any(fd == self._fd for fd, _ in ready):
                continue  # with a message, or with news of ZeroMQ's own
            if any(fd == self._monitor_fd for fd, _ in ready):
                self._see_end()
            elif not readable(self._socket):
                return None  # it is time, or a watched one is ready
        return self._socket.recv(NOW)

    def wait(self, timeout_s: float, fd: int) -> None:
        """Wait until a command may be there, `fd` is readable, or the engine may be gone; at most `timeout_s`."""
        if readable(self._socket):
            return
        poll = select.poll()
        for one in (self._fd, self._monitor_fd, fd):
            poll.register(one, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def watch(self, fd: int) -> None:
        """Let `fd` end a wait whenever it is readable; looking at it is the caller's."""
        self._watches = True
        self._poll.register(fd, select.POLLIN)

    @property
    def has_room(self) -> bool:
        """False while the engine doesn't read: then sending would wait."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def pending(self) -> bool:
        """True when a command is there. Never waits."""
        return readable(self._socket)

    def close(self) -> None:
        """Close the socket, waiting at most `LINGER_MS` for what is still to be sent. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def _see_end(self) -> None:
        while self._monitor.poll(0):
            if recv_monitor_message(self._monitor)["event"] == zmq.Event.DISCONNECTED:
                self._gone = True
        if self._gone:
            self._socket.poll(LAST_WORDS_MS)


def _until_connected(monitor: zmq.Socket[bytes], address: str, patience_s: float) -> None:
    """Wait for `monitor` to tell that the engine at `address` has taken this rank in.

    Raises: EngineDeadError when it refuses, or isn't there on this machine; RendezvousTimeout.
    """
    until_s = time.monotonic() + patience_s
    remote = address.startswith("tcp:")
    hang_ups = 0
    while monitor.poll(milliseconds(until_s)):
        event = int(recv_monitor_message(monitor)["event"])
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            return
        if event & _REFUSED:
            raise EngineDeadError(f"the engine at {address} refuses this rank's keys, or has all its ranks")
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            hang_ups += 1
            if hang_ups >= _HANG_UPS:
                raise EngineDeadError(
                    f"the engine at {address} hangs up: it refuses this rank's keys, or has other keys than this rank"
                )
        if event in (zmq.Event.CLOSED, zmq.Event.DISCONNECTED) and not remote:
            raise EngineDeadError(f"no engine listens at {address}")
    raise RendezvousTimeout(f"no engine at {address} within {patience_s:.0f} s{_why(address)}")


def _why(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != "tcp":
        return ""
    try:
        socket.getaddrinfo(parts.hostname, parts.port)
    except OSError as error:
        return f": {parts.hostname}: {error.strerror or error}"
    return ""
