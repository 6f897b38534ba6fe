"""While a model is fetched: `/startupz` says how far it is, and so does the log every now and then.

The pod that will serve listens on the same port later. Nobody needs to be told for the fetch to go on, so a port that
can't be had is no fault.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import TracebackType
from typing import Final, Self

from stage_api import names
from stage_api.startup_progress import FIELD, StartProgress

LOG_S: Final = 30.0
_ASKER_S: Final = 5.0
"""How long somebody may take to ask."""

log = logging.getLogger(__name__)


class FetchProbe:
    """Tells from a thread of its own, as long as it is entered."""

    def __init__(self, host: str | None, port: int, read: Callable[[], StartProgress]) -> None:
        self._server: _Server | None = None
        try:
            self._server = _Server(host, port, read)
        except (OSError, OverflowError) as error:
            log.warning("nobody is told how far the fetch is", extra={"error": str(error)})

    @property
    def port(self) -> int | None:
        """Where it is told."""
        return None if self._server is None else int(self._server.socket.getsockname()[1])

    def __enter__(self) -> Self:
        if self._server is not None:
            self._thread = Thread(target=self._server.serve_forever, name="fetch probe", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Server(HTTPServer):
    def __init__(self, host: str | None, port: int, read: Callable[[], StartProgress]) -> None:
        super().__init__(("", port), _Handler, bind_and_activate=False)
        self.socket.close()
        if host is None and socket.has_dualstack_ipv6():
            self.socket = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self.socket = socket.create_server((host or "0.0.0.0", port))
        self.read = read
        self._logged_s = time.monotonic()

    def service_actions(self) -> None:
        """Called twice a second."""
        if time.monotonic() - self._logged_s >= LOG_S:
            self._logged_s = time.monotonic()
            log.info(self.read().text())

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asks badly, or goes away, is left alone."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _ASKER_S
    server: _Server

    def do_GET(self) -> None:
        """/startupz, and nothing else; as long as this answers, the stage has not started."""
        if self.path != names.PATH_STARTUP:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = json.dumps({"ok": False, "phase": "fetching", FIELD: self.server.read().to_json()}).encode()
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Who asks isn't logged."""
