"""Says who may connect over TCP: the handler of ZeroMQ's authentication protocol, ZAP (RFC 27)."""

from __future__ import annotations

import logging
from typing import Final

import zmq
from zmq.utils import z85

from stage_runtime.ipc.keys import ServerKeys

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"omnistage"

log = logging.getLogger(__name__)


class Doorman:
    """Lets in whose key is known. It has no thread: whoever owns the context polls `socket` and calls `answer`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys) -> None:
        self._allowed = {z85.decode(key) for key in keys.allowed}
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(ZAP_ADDRESS)

    def refuse_all(self) -> None:
        """Let nobody in from now on."""
        self._allowed.clear()

    def answer(self) -> None:
        """Answer one question."""
        asker, empty, version, request, _domain, host, _identity, mechanism, *credentials = (
            self.socket.recv_multipart()
        )
        if mechanism == b"CURVE" and credentials and credentials[0] in self._allowed:
            verdict = [b"200", b"OK"]
        else:
            verdict = [b"400", b"not allowed"]
            log.warning(
                "refused a peer: its key is not known, or it comes too late",
                extra={"host": host.decode(errors="replace")},
            )
        self.socket.send_multipart([asker, empty, version, request, *verdict, b"", b""])
