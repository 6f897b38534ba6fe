"""Going down in order: first say so, then refuse, then wait for what is under way.

Decides who is let in; when the next phase comes is `serve`'s business.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stage_runtime.core.errors import NotAdmitting

RETRY_AFTER_S: Final = 1.0  # another replica may serve at once


class Door(Enum):
    """Who is let in."""

    OPEN = "open"
    CLOSING = "closing"
    """Not ready any more, but requests that still come are served."""
    CLOSED = "closed"


_NEXT: Final = {
    Door.OPEN: frozenset({Door.CLOSING, Door.CLOSED}),
    Door.CLOSING: frozenset({Door.CLOSED}),
    Door.CLOSED: frozenset[Door](),
}


class Drain:
    """The door, and the count of answers under way. Used on the event loop only."""

    def __init__(self) -> None:
        self._door = Door.OPEN
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def door(self) -> Door:
        """Where it stands."""
        return self._door

    def move(self, door: Door) -> None:
        """Close it further; it never opens again."""
        if door in _NEXT[self._door]:
            self._door = door

    def check(self) -> None:
        """Raises: NotAdmitting once the door is closed."""
        if self._door is Door.CLOSED:
            raise NotAdmitting("this stage is shutting down", RETRY_AFTER_S)

    async def idle(self) -> None:
        """Return when no answer is under way. The caller sets the deadline."""
        await self._idle.wait()

    def enter(self) -> None:
        """One more answer is under way."""
        self._under_way += 1
        self._idle.clear()

    def leave(self) -> None:
        """One answer is out, or its client is gone."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


class UnderWay:
    """Counts the answers to whatever has a body: what a drain waits for. Probes and lists don't hold it up."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counted from the first header to the last byte."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        self._drain.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.leave()


class LastAnswers:
    """From the first moment of a drain on, makes every answer its connection's last.

    So clients that keep connections open come to a replica that stays: their next request opens another one.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers that have begun before end their connections too; that is the server's business."""

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.door is not Door.OPEN:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, last)
