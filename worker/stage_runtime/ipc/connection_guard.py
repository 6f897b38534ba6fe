"""Says who may connect over TCP, and tells whose connection has ended.

The first is the handler of ZeroMQ's authentication protocol, ZAP (RFC 27). Both are done in a thread of their own, so
that newcomers get their answer and an end is noticed while nobody receives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread, current_thread
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from stage_runtime.ipc.keys import ServerKeys
from stage_runtime.processes.wakeup import Wakeup

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"omnistage"
JOIN_S: Final = 5.0

log = logging.getLogger(__name__)

Socket = zmq.Socket[bytes]


class ConnectionGuard:
    """Lets in whose key is known. `refuse_all` and `close` may be called from any thread."""

    def __init__(
        self, context: zmq.Context[Socket], keys: ServerKeys, monitor: Socket, on_left: Callable[[int], None]
    ) -> None:
        """Take over `monitor`, a socket's monitor of ends: `on_left` gets the file number of each that ended."""
        self._allowed = {z85.decode(key) for key in keys.allowed}
        self._on_left = on_left
        self._ended = Wakeup()
        self._monitor = monitor
        self._questions = context.socket(zmq.ROUTER)
        self._questions.bind(ZAP_ADDRESS)
        self._thread = Thread(target=self._run, name="connection-guard", daemon=True)
        self._thread.start()

    def refuse_all(self) -> None:
        """Let nobody in from now on."""
        self._allowed.clear()

    def close(self) -> None:
        """End the thread and close its sockets. Idempotent."""
        self._ended.ring()
        if self._thread is current_thread():
            self._close()
        else:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._ended.fd, zmq.POLLIN)
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        try:
            while True:
                for ready, _ in poller.poll():
                    if ready == self._ended.fd:
                        return
                    if ready is self._questions:
                        self._answer()
                    else:
                        self._on_left(int(recv_monitor_message(self._monitor)["value"]))
                    if self._questions.closed:
                        return
        finally:
            self._close()

    def _answer(self) -> None:
        asker, empty, version, request, _domain, host, _identity, mechanism, *credentials = (
            self._questions.recv_multipart()
        )
        if mechanism == b"CURVE" and credentials and credentials[0] in self._allowed:
            verdict = [b"200", b"OK"]
        else:
            verdict = [b"400", b"not allowed"]
            log.warning(
                "refused a peer: its key is not known, or it comes too late",
                extra={"host": host.decode(errors="replace")},
            )
        self._questions.send_multipart([asker, empty, version, request, *verdict, b"", b""])

    def _close(self) -> None:
        self._questions.close(linger=0)
        self._monitor.close(linger=0)
