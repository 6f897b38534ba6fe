"""One client's connection, and what bounds it: how many there may be, and how long one may say or read nothing."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Self

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.server.http.bodies import HALF_CLOSED, PRESENCE_S
from stage_runtime.server.http.errors import error_body
from stage_runtime.server.http.limits import CROWDED, REQUEST_ID_HEADER, new_request_id
from stage_runtime.server.http.request_heads import MAX_HEAD_BYTES

MOST_RESERVED: Final = 128
"""Open files that connections leave to the rest of the process: models, shared memory, sockets of the ranks."""
QUIET_S: Final = 0.5
"""After so long without a request a connection is idle enough to be closed by the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What clients may take up. The numbers of connections stay below a process's usual 1024 open files."""

    served: int = 768
    """Connections that are served; on those above it only probes are, the rest is told to come back."""
    open: int = 896
    """Connections at all; those above it are cut off."""
    head_s: float = 30.0
    """Seconds in which a request line and its headers must come, from the first moment of the connection on."""
    stall_s: float = 60.0
    """Seconds after which a client that takes none of what waits for it is gone."""

    @classmethod
    def within(cls, files: int) -> Self:
        """The bounds of a process that may have so many open files; at most the usual ones."""
        if files == resource.RLIM_INFINITY:  # -1
            return cls()
        room = max(2, files - min(MOST_RESERVED, files // 2))
        spare = min(MOST_RESERVED, room // 4)
        return cls(served=min(cls().served, room - spare), open=min(cls().open, room))


class Connection(H11Protocol):
    """uvicorn's connection with bounds on silent clients. A cut connection is to the application a client that left."""

    connections: set[Connection]  # type: ignore[assignment]

    def __init__(self, *, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._presence: asyncio.TimerHandle | None = None
        self._half_closed = asyncio.Event()
        self._idle_since_s = self.loop.time()

    @property
    def idle(self) -> bool:
        """True while nothing is asked for and nothing waits to be taken."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first head
        return (cycle is None or cycle.response_complete) and not self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find a place for it, and begin to wait for a head."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, HALF_CLOSED: self._half_closed}
        others = [one for one in self.connections if one is not self and not one.transport.is_closing()]
        if len(others) >= self._bounds.served and not self._find_place(others):
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        super().connection_lost(exc)
        self._head = _cancelled(self._head)
        self._stall = _cancelled(self._stall)
        self._presence = _cancelled(self._presence)

    def data_received(self, data: bytes) -> None:
        """Part of a head, whose deadline stays, or more."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._head = _cancelled(self._head)
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client says no more. One whose request is whole may still read, and is answered before the end."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        cycle.keep_alive = False
        self._half_closed.set()
        self._ask_whether_it_reads(0)
        return True

    def on_response_complete(self) -> None:
        """The answer is written; whether the client takes it is another matter."""
        self._idle_since_s = self.loop.time()
        super().on_response_complete()
        self._watch_reader()

    def pause_writing(self) -> None:
        """The client is behind."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._stall = _cancelled(self._stall)

    def finish(self) -> None:
        """Make what it does its last: the answer that is under way, or the next one; none, if it is idle for long.

        NB: one that was used just now may be used again this very moment, and its client would see a reset.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif not self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            rest_s = max(0.0, self._idle_since_s + QUIET_S - self.loop.time())
            self.timeout_keep_alive_task = self.loop.call_later(rest_s, self.let_go)

    def let_go(self) -> None:
        """End it in good order."""
        self.timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Word what the parser refused as every other error is worded."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer is under way, and nothing can be put into it
            return
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        code = "head_too_large" if status == 431 else InvalidRequest.code
        why = f"a head of at most {MAX_HEAD_BYTES} bytes" if status == 431 else "a request in HTTP/1.1"
        content = json.dumps(error_body(status, f"expected {why}, got {error or msg}", code=code)).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
            (REQUEST_ID_HEADER, new_request_id()),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES.get(status, b""))
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _find_place(self, others: Collection[Connection]) -> bool:
        """Take that of the longest idle one, or be one too many. False where there is no place at all.

        NB: one that came just now may have its head on the way: it is closed only where nothing else is left.
        """
        idle = sorted((one for one in others if one.idle), key=_idle_since_s)
        full = len(others) >= self._bounds.open
        if idle and (full or _idle_since_s(idle[0]) <= self.loop.time() - QUIET_S):
            idle[0].let_go()
            return True
        self.app_state[CROWDED] = True
        return not full

    def _ask_whether_it_reads(self, asked: int) -> None:
        """Send what every client passes over: from one that has left altogether comes a reset, and the next one fails.

        NB: HTTP/1.0 has nothing of the kind, so such a client is taken to read. An answer that has begun asks itself.
        """
        cycle: RequestResponseCycle = self.cycle
        if cycle.response_started or self.scope["http_version"] == "1.0":
            return
        if asked:
            self.transport.write(
                self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
            )
        delay_s = PRESENCE_S[min(asked, len(PRESENCE_S) - 1)]
        self._presence = self.loop.call_later(delay_s, self._ask_whether_it_reads, asked + 1)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self._bounds.head_s, self.transport.abort)

    def _watch_reader(self) -> None:
        """Look again later at what is unsent. NB: nothing is added to it while the client is behind."""
        self._stall = _cancelled(self._stall)
        if unsent := self.transport.get_write_buffer_size():
            self._stall = self.loop.call_later(self._bounds.stall_s, self._look_at_reader, unsent)

    def _look_at_reader(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()
        else:
            self.transport.abort()


def _idle_since_s(connection: Connection) -> float:
    return connection._idle_since_s


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if timer is not None:
        timer.cancel()
    return None
