"""What is read of a request's head before its body: where it asks, whether its end can be told, what it may weigh.

Pure ASGI. The parser has refused what is no HTTP at all; `connection.py` words that.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.server.http.errors import envelope

MAX_HEAD_BYTES: Final = 32 << 10
"""Request line and headers."""

_SCHEMES: Final = (b"http://", b"https://")


class AbsoluteForm:
    """Finds the path in a request line that names scheme and host too, as for a proxy (RFC 9112 §3.2.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From here on only the path is known."""
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw.lower().startswith(_SCHEMES):
            scope["raw_path"] = b"/" + raw.split(b"://", 1)[1].partition(b"/")[2]
            scope["path"] = unquote(scope["raw_path"].decode("ascii"))
        await self._app(scope, receive, send)


class Heads:
    """Refuses heads that are too large, or whose body's end or coding could be understood in two ways.

    HEAD is answered as GET without the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A refused head ends its connection: nobody can tell where the next one would begin."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if (refusal := _refusal(scope)) is not None:
            refusal.headers["connection"] = "close"
            return await refusal(scope, receive, send)
        if scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        # The server sees by its own scope that the answer has no body, so that one stays as it is.
        as_get = {**scope, "method": "GET"}
        await self._app(as_get, receive, _without_body(send))
        if "route" in as_get:
            scope["route"] = as_get["route"]


def _refusal(scope: Scope) -> Response | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    if size + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES:
        return envelope(
            431, f"request line and headers are larger than {MAX_HEAD_BYTES} bytes", code="head_too_large"
        )
    if why := _ambiguous(scope, headers):
        return envelope(400, why, code=InvalidRequest.code)
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return envelope(
                415,
                "content-encoding: expected none, since bodies are not decoded",
                code="unsupported_encoding",
            )
    return None


def _ambiguous(scope: Scope, headers: list[tuple[bytes, bytes]]) -> str | None:
    """Why proxies and this server could see the body end in different places (RFC 9112 §6); None when they can't.

    The parser has refused lengths that differ, codings other than chunked, and names that end in a space.
    """
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and lengths:
        return "content-length and transfer-encoding: expected one of them, got both"
    if codings and scope.get("http_version") == "1.0":
        return "transfer-encoding: expected none in HTTP/1.0"
    return None


def _without_body(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sent
