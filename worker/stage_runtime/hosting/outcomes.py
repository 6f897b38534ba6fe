"""The outcomes of one submission, merged from its requests' streams, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from stage_runtime.core.outcome import Outcome, Progressed
from stage_runtime.engine.streams import Stream


class StreamOutcomes:
    """Implements `client.Outcomes` with streams. The engine ends every wait: also its death ends its streams."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._open = list(streams)
        self._news = asyncio.Event()
        # NB: bound to the event, not to this object: the engine must not keep its consumer alive.
        wake = partial(_wake, asyncio.get_running_loop(), self._news)
        for stream in streams:
            stream.subscribe(wake)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        """The next outcome of any of the requests."""
        try:
            while self._open:
                self._news.clear()
                if (outcome := self._take()) is not None:
                    return outcome
                # The engine ends this wait: also its death and its close give every request a terminal outcome.
                await self._news.wait()
        except asyncio.CancelledError:
            self._take_back()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Take back the requests that haven't ended. Idempotent."""
        self._take_back()

    def _take(self) -> Outcome | None:
        """An outcome that is there. After one a stream goes to the back, so that none starves; after its last, out."""
        for place, stream in enumerate(self._open):
            outcome = stream.take()
            if outcome is not None:
                del self._open[place]
                if isinstance(outcome, Progressed):
                    self._open.append(stream)
                return outcome
        return None

    def _take_back(self) -> None:
        streams, self._open = self._open, []
        for stream in streams:
            stream.close()


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """From the engine's thread. A closed event loop has no consumer left to wake."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(news.set)
