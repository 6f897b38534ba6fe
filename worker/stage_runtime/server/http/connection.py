"""One client's connection, and what bounds it: how many there may be, and how long one may say or read nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stage_runtime.server.http.limits import CROWDED


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


class Connection(H11Protocol):
    """uvicorn's connection with bounds on silent clients. A cut connection is to the application a client that left."""

    def __init__(self, *, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.open:
            transport.abort()
            return
        if len(self.connections) > self._bounds.served:
            self.app_state = {**self.app_state, CROWDED: True}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        super().connection_lost(exc)
        self._head = _cancelled(self._head)
        self._stall = _cancelled(self._stall)

    def data_received(self, data: bytes) -> None:
        """Part of a head, whose deadline stays, or more."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle  # None before the first head
        if cycle is not None and not cycle.response_complete:
            self._head = _cancelled(self._head)
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def on_response_complete(self) -> None:
        """The answer is written; whether the client takes it is another matter."""
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


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if timer is not None:
        timer.cancel()
    return None
