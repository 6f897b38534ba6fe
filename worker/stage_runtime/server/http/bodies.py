"""Answers that may be large or long: sent in pieces at the client's pace, given up when it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES: Final = 1 << 18  # sent before the client's pace is looked at again
END_OF_EVENTS: Final = b"data: [DONE]\n\n"
COMMENT: Final = b":\n\n"
"""What readers of events pass over."""
SILENCE_S: Final = 10.0
"""Proxies cut connections that say nothing for 15 s or more."""
HALF_CLOSED: Final = "half_closed"
"""Key of an asyncio.Event in a connection's state, set once the client says no more; it may still read."""
PRESENCE_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, SILENCE_S)
"""How long to wait before each time that such a client is asked whether it is there; the last one goes on."""

EVENT_SCHEMA: Final = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""What OpenAPI says of an event."""

T = TypeVar("T")


class Pieces(Response):
    """A JSON answer given in parts, never joined: a few images in base64 can be hundreds of megabytes."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.status_code = 200
        self.background = None
        self._parts = parts
        self.init_headers(
            {"content-length": str(sum(map(len, parts))), "content-type": "application/json"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`send` waits while the client is behind, and does nothing once it is gone."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in _cut(self._parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class EventStream(Response):
    """Server-sent events, ended by `data: [DONE]`. When the client leaves, or after the end, `close` is called."""

    def __init__(
        self,
        events: AsyncGenerator[Sequence[bytes], None],
        close: Callable[[], Awaitable[None]],
        silence_s: float = SILENCE_S,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`silence_s`: after so long without an event a comment is sent. `headers`: more of them."""
        self.status_code = 200
        self.background = None
        self._events = events
        self._close = close
        self._silence_s = silence_s
        self.init_headers(
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-store",
                "x-accel-buffering": "no",  # proxies that obey it pass each event on at once
                **(headers or {}),
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """At most one event is held while the client is behind."""
        half_closed = scope.get("state", {}).get(HALF_CLOSED) or asyncio.Event()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._send_all(send, half_closed))
        finally:
            # NB: closing a generator that never began runs none of its code.
            await self._events.aclose()
            await self._close()

    async def _send_all(self, send: Send, half_closed: asyncio.Event) -> None:
        following = asyncio.ensure_future(anext(self._events, None))
        try:
            while (event := await self._unless_silent(send, following, half_closed)) is not None:
                for piece in _cut(event):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                following = asyncio.ensure_future(anext(self._events, None))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await send({"type": "http.response.body", "body": END_OF_EVENTS})

    async def _unless_silent(
        self, send: Send, following: asyncio.Future[Sequence[bytes] | None], half_closed: asyncio.Event
    ) -> Sequence[bytes] | None:
        """The next event, None after the last; comments are sent meanwhile, so that both sides hear of each other."""
        closing = asyncio.ensure_future(half_closed.wait())
        asked = 0
        try:
            while True:
                waits: set[asyncio.Future[Any]] = {following} if closing.done() else {following, closing}
                delay_s = PRESENCE_S[min(asked, len(PRESENCE_S) - 1)] if closing.done() else self._silence_s
                done, _ = await asyncio.wait(waits, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
                if following in done:
                    return following.result()
                if not done:
                    asked += closing.done()
                    await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        finally:
            closing.cancel()


def event(name: str, fields: Mapping[str, object], base64_image: bytes | None = None) -> Sequence[bytes]:
    """One server-sent event whose data is a JSON object; the image is put in as it is, never escaped."""
    head = json.dumps({"type": name, **fields}, separators=(",", ":")).encode()
    if base64_image is None:
        return (f"event: {name}\ndata: ".encode(), head, b"\n\n")
    return (f"event: {name}\ndata: ".encode(), head[:-1], b',"b64_json":"', base64_image, b'"}\n\n')


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives, or None as soon as the client has left; `work` is cancelled and awaited then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _cut(parts: Sequence[bytes]) -> Iterator[bytes]:
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            yield part[at : at + PIECE_BYTES]
