"""What both ends do with their sockets: flags, and how to wait for one among other file descriptors."""

from __future__ import annotations

import math
import time
from typing import Final

import zmq

LINGER_MS: Final = 500
"""How long closing may wait for last words to get out."""
HEARTBEAT_MS: Final = 2_000
"""Between machines each side asks so often. ZeroMQ's own thread answers, also while the others are at long work."""
VANISHED_MS: Final = 10_000
"""Who has said nothing for so long is gone."""

# Plain numbers: to combine flags of an enum costs more than to send a message.
NOW: Final = int(zmq.DONTWAIT)
MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
IN: Final = int(zmq.POLLIN)


def monitor_of(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Another socket, that tells of these events of `socket`. `socket.disable_monitor` goes before closing it.

    ZeroMQ's own thread waits where nobody takes what it tells: for room, if a thousand events are left unread, and for
    ever, if this end is closed before the other one; and so does then who closes `socket`. So it takes any number.
    """
    address = f"inproc://monitor-{fd_of(socket)}"
    socket.monitor(address, events)
    told: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    told.rcvhwm = 0
    told.connect(address)
    return told


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Have it ask whether the other end is there, on connections that are made from now on."""
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = VANISHED_MS
    socket.heartbeat_ttl = VANISHED_MS


def readable(socket: zmq.Socket[bytes]) -> bool:
    """A message is there. To be asked before each wait: a socket's file descriptor tells of changes only."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & IN)


def fd_of(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


def milliseconds(until_s: float) -> int:
    return max(0, math.ceil((until_s - time.monotonic()) * 1000))


def seconds_left(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())
