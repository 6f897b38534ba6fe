"""An API server that knows one stage, its pods and its Secret, and forwards ports as a real one does over WebSocket.

A pod's control port is a port of this machine. Frames and channels are those of `v4.channel.k8s.io`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from urllib.parse import parse_qs, urlsplit

_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE = 2, 8
_DATA, _ERROR = b"\x00", b"\x01"
API_TOKEN: Final = "who-may-ask-the-api-server"


class ApiServer:
    """Serves between `with` and its end. `objects` are answers by path, `ports` the control port of each pod."""

    def __init__(self, objects: Mapping[str, Any], ports: Mapping[str, tuple[str, int]]) -> None:
        class Handler(_Handler):
            known, forwarded = objects, ports

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="api-server")

    def kubeconfig(self, folder: Path, namespace: str) -> Path:
        """A kubeconfig that leads here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
            ],
            "users": [{"name": "u", "user": {"token": API_TOKEN}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    known: Mapping[str, Any]
    forwarded: Mapping[str, tuple[str, int]]

    def do_GET(self) -> None:
        """An object, or a forwarded port."""
        asked = urlsplit(self.path)
        if self.headers.get("authorization") != f"Bearer {API_TOKEN}":
            self._answer(401, {"kind": "Status", "reason": "Unauthorized"})
        elif asked.path.endswith("/portforward"):
            self._forward(asked.path.split("/")[-2], int(parse_qs(asked.query)["ports"][0]))
        elif asked.path in self.known:
            self._answer(200, self.known[asked.path])
        else:
            self._answer(404, {"kind": "Status", "reason": "NotFound"})

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self, pod: str, port: int) -> None:
        key = self.headers["sec-websocket-key"] + _GUID
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        self.send_header(
            "sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        )
        self.send_header("sec-websocket-protocol", "v4.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        for channel in (_DATA, _ERROR):
            self._send(channel + struct.pack("<H", port))
        try:
            target = socket.create_connection(self.forwarded[pod])
        except OSError as error:
            self._send(_ERROR + f"an error occurred forwarding {port}: {error}".encode())
            return
        with target:
            back = threading.Thread(target=self._pass_back, args=(target,), name="port-forward")
            back.start()
            with suppress(OSError):
                while (frame := _read_frame(self.rfile)) is not None:
                    target.sendall(frame[1:])
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
            back.join()

    def _pass_back(self, target: socket.socket) -> None:
        with suppress(OSError):
            while data := target.recv(1 << 16):
                self._send(_DATA + data)
            self._send(b"", _CLOSE)

    def _send(self, data: bytes, opcode: int = _BINARY) -> None:
        size = len(data)
        length = struct.pack("!B", size) if size < 126 else struct.pack("!BQ", 127, size)
        self.wfile.write(bytes([0x80 | opcode]) + length + data)
        self.wfile.flush()


def _read_frame(file: BinaryIO) -> bytes | None:
    """What the next data frame holds; None after the last."""
    head = file.read(2)
    if len(head) < 2 or head[0] & 0x0F == _CLOSE:
        return None
    size = head[1] & 0x7F
    if size >= 126:
        size = int.from_bytes(file.read(2 if size == 126 else 8), "big")
    mask = file.read(4)
    return bytes(byte ^ mask[place % 4] for place, byte in enumerate(file.read(size)))
