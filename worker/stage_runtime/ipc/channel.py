"""The sockets between an engine and its ranks: one ROUTER in the engine, a DEALER for each thread of a rank that talks.

A socket belongs to the thread that uses it. On one machine they meet in a private folder, which is gone once all ranks
are connected; ranks on other machines come over TCP with CURVE. Nobody ever connects again: a connection that breaks
is the end of the group.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import zmq
from msgspec import Struct

from stage_runtime.core.errors import EngineDeadError, StageError
from stage_runtime.ipc.codec import BadMessage, decode_reply, encode
from stage_runtime.ipc.connection_guard import DOMAIN, ConnectionGuard
from stage_runtime.ipc.identity import Peer, peer_of
from stage_runtime.ipc.keys import ServerKeys
from stage_runtime.ipc.messages import Refused
from stage_runtime.ipc.socket_folder import private_folder
from stage_runtime.ipc.sockets import (
    LINGER_MS,
    MORE,
    NOW,
    fd_of,
    keep_alive,
    milliseconds,
    monitor_of,
    readable,
)
from stage_runtime.processes.wakeup import Wakeup

MAX_DRAIN: Final = 256
"""Replies taken at once, so that a flood of them doesn't keep the loop from its other work."""

SOCKET_FILE: Final = "engine"

log = logging.getLogger(__name__)


class BadReply(Struct, frozen=True):
    """Something came that is no reply of the rank that it came from; `rank` is None when nobody knows whose it is."""

    rank: int | None
    why: str

    @property
    def death(self) -> EngineDeadError:
        """What the group dies of."""
        return EngineDeadError(f"rank {self.rank} can't be understood: {self.why}", rank=self.rank)


class PeerGone(StageError):
    """A rank can't be reached: it is not connected, or has not read for so long that its pipe is full."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank} can't be reached: {why}")
        self.rank = rank


class EngineChannel:
    """The engine's end. One thread uses it, apart from `wake`."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        listen: tuple[str, int] | None = None,
        keys: ServerKeys | None = None,
        life: str = "",
        on_gone: Callable[[int], None] = lambda rank: None,
        decode: Callable[[bytes], Struct] = decode_reply,
    ) -> None:
        """Listen in `folder` (None: a private one in the system's temporary folder), and at `listen`: host and port.

        Port 0 lets the system choose. Ranks of another `life` are refused. `on_gone` is called, from another thread,
        with the rank whose connection over TCP has ended. `decode` reads what they say. Raises: ValueError for
        `listen` without keys; SpecError for a folder that can't be used; zmq.ZMQError, OSError when an address can't
        be had.
        """
        if (listen is None) != (keys is None):
            raise ValueError("a TCP address needs keys, and keys need an address")
        self._closed = False
        self._wakeup = Wakeup()
        self._life = life
        self._on_gone = on_gone
        self._decode = decode
        self._peers: dict[bytes, Peer | None] = {}
        self._identities: dict[int, bytes] = {}
        self._folder = private_folder(folder, SOCKET_FILE)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._guard: ConnectionGuard | None = None
        self._connections: dict[int, int] = {}
        """Rank by file number, of connections over TCP."""
        self._sealed = False
        try:
            self._socket.linger = LINGER_MS
            self._socket.router_mandatory = True
            self.address: Final = f"ipc://{self._folder / SOCKET_FILE}"
            self._socket.bind(self.address)
            self.tcp_address: Final = self._listen(listen, keys) if listen and keys else None
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._fd = fd_of(self._socket)
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wakeup.fd, select.POLLIN)

    def send(self, ranks: Iterable[int], command: Struct | bytes) -> None:
        """Send `command`, encoded or not, to each of `ranks`, without ever waiting.

        Raises: PeerGone for the first that can't be reached, once the others have it; BadMessage.
        """
        data = command if isinstance(command, bytes) else encode(command)
        gone: PeerGone | None = None
        for rank in ranks:
            try:
                self._socket.send(self._identity(rank), MORE)
                self._socket.send(data, NOW)
            except zmq.ZMQError as error:
                gone = gone or PeerGone(rank, _why_unsent(error))
        if gone is not None:
            raise gone

    def receive(self, timeout_s: float | None) -> list[Any]:
        """What has come, in order of arrival, at most `MAX_DRAIN` of them.

        Waits for the first, a `wake`, a watched file descriptor, or `timeout_s` (None: no limit), and gives an empty
        list for the last three. Never raises for what a peer sends.
        """
        replies: list[Any] = []
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._drain(replies)
            if replies:
                return replies
            ready = self._poll.poll(None if until_s is None else milliseconds(until_s))
            if len(ready) == 1 and ready[0][0] == self._fd:
                continue  # with a message, or with news of ZeroMQ's own
            if any(fd == self._wakeup.fd for fd, _ in ready):
                self._wakeup.silence()
            self._drain(replies)
            return replies

    def wake(self) -> None:
        """Make a `receive` that waits, or else the next one, return.

        Any thread, a signal handler, the garbage collector: takes no lock. Harmless after `close`.
        """
        self._wakeup.ring()

    def watch(self, fd: int) -> None:
        """Let `fd` end a wait whenever it is readable; looking at it is the caller's."""
        self._poll.register(fd, select.POLLIN)

    def seal(self) -> None:
        """Everybody is connected: let nobody else in, and leave no file behind. Idempotent.

        NB: not by unbinding, which would end the connections that were made through that address.
        """
        if self._sealed:
            return
        self._sealed = True
        (self._folder / SOCKET_FILE).unlink(missing_ok=True)
        self._folder.rmdir()
        if self._guard is not None:
            self._guard.refuse_all()

    def close(self) -> None:
        """Close the sockets, waiting at most `LINGER_MS` for what is still to be sent. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.seal()
        if self._guard is not None:
            self._socket.disable_monitor()
            self._guard.close()
        self._socket.close()
        self._context.term()

    def _listen(self, listen: tuple[str, int], keys: ServerKeys) -> str:
        """Options of a socket hold for the addresses that it is bound to later: the local one stays plain."""
        host, port = listen
        monitor = monitor_of(self._socket, zmq.Event.DISCONNECTED)
        self._guard = ConnectionGuard(self._context, keys, monitor, self._left)
        keep_alive(self._socket)
        self._socket.ipv6 = ":" in host
        self._socket.zap_domain = DOMAIN
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret
        self._socket.curve_publickey = keys.public
        self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _drain(self, replies: list[Any]) -> None:
        socket = self._socket
        frames_of = socket.recv_multipart if self._guard is None else self._traced
        while len(replies) < MAX_DRAIN and readable(socket):
            reply = self._read(frames_of(NOW))
            if reply is not None:
                replies.append(reply)

    def _traced(self, flags: int) -> list[bytes]:
        """Frames of a message, and notes whose connection it came through: all that a monitor names it by."""
        frames = self._socket.recv_multipart(flags, copy=False)
        peer = self._peer(frames[0].bytes)
        if peer is not None and peer.life == self._life:
            with suppress(zmq.ZMQError):
                self._connections[int(frames[0].get(zmq.SRCFD))] = peer.rank
        return [frame.bytes for frame in frames]

    def _read(self, frames: list[bytes]) -> Struct | None:
        """None for what a rank of another life says: it is answered, and goes."""
        identity = frames[0]
        peer = self._peer(identity)
        if peer is None:
            return BadReply(None, f"a message came from {identity[:40]!r}, which is no rank")
        rank = peer.rank
        if peer.life != self._life:
            self._refuse(identity, peer)
            return None
        if len(frames) != 2:
            return BadReply(rank, f"a message of {len(frames) - 1} parts came, expected 1")
        try:
            reply = self._decode(frames[1])
        except BadMessage as bad:
            return BadReply(rank, str(bad))
        if (named := getattr(reply, "rank", rank)) != rank:
            return BadReply(rank, f"it sent a {type(reply).__name__} in the name of rank {named}")
        return reply

    def _peer(self, identity: bytes) -> Peer | None:
        if identity not in self._peers:
            self._peers[identity] = peer_of(identity)
        return self._peers[identity]

    def _identity(self, rank: int) -> bytes:
        identity = self._identities.get(rank)
        if identity is None:
            identity = self._identities[rank] = Peer(rank, self._life).identity
        return identity

    def _refuse(self, identity: bytes, peer: Peer) -> None:
        why = (
            f"it is of life {peer.life or 'unknown'} (protocol, epoch, topology), this group of {self._life}"
        )
        log.warning("refused a rank of another life", extra={"rank": peer.rank, "life": peer.life})
        with suppress(zmq.ZMQError):  # it is gone already
            self._socket.send(identity, MORE)
            self._socket.send(encode(Refused(why)), NOW)

    def _left(self, fd: int) -> None:
        """Over TCP there is no process to watch, so the end of a rank's connection is told. In another thread.

        Whoever has never said anything, such as a peer that was refused, may go as it came.
        """
        rank = self._connections.pop(fd, None)
        if rank is not None:
            self._on_gone(rank)


def _why_unsent(error: zmq.ZMQError) -> str:
    match error.errno:
        case zmq.EHOSTUNREACH:
            return "it is not connected"
        case zmq.EAGAIN:
            return "it has not read for too long"
        case _:
            return str(error)
