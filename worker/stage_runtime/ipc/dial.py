"""Waits until a rank's socket has reached the engine, and says why not. ZeroMQ itself tries again for ever."""

from __future__ import annotations

import socket
import time
from typing import Final
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import recv_monitor_message

from stage_runtime.core.errors import EngineDeadError, RendezvousTimeout

_REFUSED: Final = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
WATCHED: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | _REFUSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
)
"""What a socket's monitor has to tell for `until_connected`."""

_HANG_UPS: Final = 20
"""An engine that is dialled with a wrong key of its own can't say no: it hangs up. So often, and it is no accident.
What it says to a rank without keys may be lost, too, when it hangs up at once."""


def until_connected(monitor: zmq.Socket[bytes], address: str, patience_s: float) -> None:
    """Wait for `monitor` to tell that the engine at `address` has taken this rank in.

    Raises: EngineDeadError when it refuses, or isn't there on this machine; RendezvousTimeout.
    """
    until_s = time.monotonic() + patience_s
    remote = address.startswith("tcp:")
    hang_ups = 0
    while monitor.poll(max(0, round((until_s - time.monotonic()) * 1000))):
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
