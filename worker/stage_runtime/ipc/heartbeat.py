"""How the two ends of a connection between machines know that the other is there."""

from __future__ import annotations

from typing import Final

import zmq

HEARTBEAT_MS: Final = 2_000
"""Each side asks so often. ZeroMQ's own thread answers, also while the others are at long work."""

VANISHED_MS: Final = 10_000
"""Who has said nothing for so long is gone."""


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Have it ask, on connections that are made from now on."""
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = VANISHED_MS
    socket.heartbeat_ttl = VANISHED_MS
