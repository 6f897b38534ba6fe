"""What every request passes before the application sees it: an id, a bounded body, a guard against our own bugs.

Pure ASGI, since a middleware that runs the application in a task of its own hides the client's disconnect from it.
The limits on the request line and headers are the HTTP parser's.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stage_runtime import log as logs
from stage_runtime.core.errors import NotAdmitting, StageError
from stage_runtime.server.http.errors import envelope

MAX_BODY_BYTES: Final = 1 << 20
MAX_DISCARDED_BYTES: Final = 64 << 20  # of a body that is too large, read so that its client can hear so
BODY_TIMEOUT_S: Final = 30.0  # to receive one whole body
CROWDED: Final = "crowded"
"""Key in the state of a connection that is one too many."""
CROWDED_RETRY_AFTER_S: Final = 5.0
CLIENT_GONE: Final = 499  # nobody reads it; it stands in the log and in the metrics
REQUEST_ID_HEADER: Final = "x-request-id"

_SANE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_PROBES: Final = frozenset({"/livez", "/readyz", "/startupz", "/metrics"})

log = logging.getLogger(__name__)


def new_request_id() -> str:
    """An id for a request whose client gave none."""
    return f"req-{secrets.token_hex(12)}"


class RequestIds:
    """Gives each request an id, the client's own when it is sane, sends it back, and logs one line an answer."""

    def __init__(self, app: ASGIApp, on_answer: Callable[[int], None] = lambda status: None) -> None:
        """`on_answer` is told the status of each answer but to probes; 499 where the client left before."""
        self._app = app
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The id is in `scope["state"]["request_id"]` and in the log's context meanwhile."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = _taken_over(Headers(scope=scope).get(REQUEST_ID_HEADER)) or new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started_s, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        token = logs.request_id.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            is_probe = scope["path"] in _PROBES
            if not is_probe:
                self._on_answer(status or CLIENT_GONE)
            level = logging.DEBUG if is_probe else logging.INFO
            log.log(level, "answered", extra=_line(scope, status, time.monotonic() - started_s))
            logs.request_id.reset(token)


class CrowdLimit:
    """Answers 503 on connections that are too many, but to probes: a crowd must not make a stage look dead."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whether the connection is one too many stands in `scope["state"]`."""
        if scope["type"] != "http" or CROWDED not in scope.get("state", {}) or scope["path"] in _PROBES:
            return await self._app(scope, receive, send)
        refusal = envelope(
            503, "too many connections", code=NotAdmitting.code, retry_after_s=CROWDED_RETRY_AFTER_S
        )
        refusal.headers["connection"] = "close"
        return await refusal(scope, receive, send)


class BodyLimit:
    """Receives the whole body, at most `MAX_BODY_BYTES` counted on the wire, before the application starts."""

    def __init__(
        self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, timeout_s: float = BODY_TIMEOUT_S
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 413 to a longer body and 408 to one that does not come; a client that left gets nothing."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._check_announced(Headers(scope=scope))
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(receive)
        except _TooLarge:
            message = f"the body is larger than {self._max_bytes} bytes"
            refusal = envelope(413, message, code="body_too_large")
        except TimeoutError:
            refusal = envelope(408, f"no whole body within {self._timeout_s:g} s", code="body_timeout")
        else:
            return None if body is None else await self._app(scope, _replay(body, receive), send)
        # More of that body may be on its way: the connection is of no further use.
        refusal.headers["connection"] = "close"
        return await refusal(scope, receive, send)

    def _check_announced(self, headers: Headers) -> None:
        """Raises: _TooLarge for a body that need not come at all: its client waits for a word, or it is immense."""
        announced = headers.get("content-length", "0")
        # The parser lets only digits through, but more of them than int() takes.
        length = int(announced) if len(announced) < 20 else MAX_DISCARDED_BYTES + 1
        if length > (self._max_bytes if "expect" in headers else MAX_DISCARDED_BYTES):
            raise _TooLarge

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None when the client left.

        Raises: _TooLarge after all of a body that is too large has passed by. A client that is still sending when
        its connection is closed may never see the answer.
        """
        body, length = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            length += len(part)
            if length <= self._max_bytes:
                body += part
            if length > MAX_DISCARDED_BYTES:
                raise _TooLarge
            if not message.get("more_body", False):
                break
        if length > self._max_bytes:
            raise _TooLarge
        return bytes(body)


class LastResort:
    """Turns an exception that nothing else took into a 500 in the usual envelope, logged once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that has begun is cut off, so that no client takes it for whole."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if scope["type"] != "http" or started:
                raise
            log.exception("a request hit a bug")
            await envelope(500, "internal error", code=StageError.code)(scope, receive, send)


class _TooLarge(Exception):
    """The body passed the limit."""


def _taken_over(given: str | None) -> str | None:
    return given if given is not None and _SANE_ID.fullmatch(given) else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body first, then what comes after it: the disconnect."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _line(scope: Scope, status: int, seconds: float) -> dict[str, object]:
    """What the access line says. The route's template, never the path: that is the client's text."""
    route = getattr(scope.get("route"), "path", None)
    return {"method": scope["method"], "route": route, "status": status, "seconds": round(seconds, 4)}
