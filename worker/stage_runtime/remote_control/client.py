"""Control calls to one replica over HTTP, whatever carries the bytes."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stage_runtime.core.errors import StageError

PATIENCE_S: Final = 1900.0
"""Longer than any call may take: weights are moved and traces written for minutes."""
PIECE_BYTES: Final = 1 << 20

Connect = Callable[[], socket.socket]


class ControlRefused(StageError):
    """A replica did not do what it was told; the message is its own."""


class ControlClient:
    """Calls to one replica. Each has a connection of its own."""

    def __init__(self, connect: Connect, token: str | None = None) -> None:
        """Whatever `connect` gives is closed after a call. `token`: None where to be let in is proof enough.

        Raises: ControlRefused for a token of several lines, which no header can hold.
        """
        if token is not None and any(end in token for end in "\r\n\0"):
            raise ControlRefused("the token: expected one line of text, got another")
        self._connect = connect
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        """The answer, as JSON has it. Raises: ControlRefused; OSError where nobody answers."""
        with _Connection(self._connect()) as connection:
            connection.request(
                method,
                f"/control{path}",
                None if body is None else json.dumps(body),
                {**self._headers, **({} if body is None else {"content-type": "application/json"})},
            )
            try:
                return json.loads(_checked(connection.getresponse()).read())
            except (http.client.HTTPException, ValueError) as error:
                raise ControlRefused(f"gave no whole answer: {error}") from error

    def download(self, rank: int, target: Path) -> None:
        """Write the trace that `rank` has recorded to `target`, whole or not at all. Raises: as `call`."""
        part = target.with_name(f"{target.name}.part-{os.getpid()}")
        with _Connection(self._connect()) as connection:
            connection.request("GET", f"/control/traces/{rank}", headers=self._headers)
            try:
                response = _checked(connection.getresponse())
                with part.open("wb") as file:
                    while piece := response.read(PIECE_BYTES):
                        file.write(piece)
                part.replace(target)
            except http.client.HTTPException as error:
                raise ControlRefused(f"the trace of rank {rank} broke off") from error
            finally:
                part.unlink(missing_ok=True)


class _Connection(http.client.HTTPConnection):
    """A connection over a socket that is there already."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("stage")
        connected.settimeout(PATIENCE_S)
        self.sock = self._connected = connected

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        # An answer that broke off keeps its file, and the file the socket, for as long as the error is kept.
        if self._connected.fileno() != -1:
            os.close(self._connected.detach())


def _checked(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.status == http.HTTPStatus.OK:
        return response
    text = response.read()
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"answered {response.status}"
    raise ControlRefused(str(message))
