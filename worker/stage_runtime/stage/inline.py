"""A stage whose engine lives in the caller's process: no socket, no copy, no codec."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.outcome import Outcome, Progressed
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.engine.streams import Stream
from stage_runtime.sched.base import Snapshot


class InlineOutcomes:
    """Outcomes of one submission, merged from its requests' streams."""

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


class InlineStage:
    """StageClient of an engine in this process. The engine's starting and closing stay with its owner."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def phase(self) -> Phase:
        """Where the engine is in its life."""
        return self._engine.phase

    @property
    def death(self) -> BaseException | None:
        """Why the engine is dead; None when it isn't."""
        return self._engine.death

    @property
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""
        return self._engine.capability

    async def submit(self, requests: Sequence[Request]) -> InlineOutcomes:
        """Admit all of `requests`, or none."""
        return InlineOutcomes(self._engine.add(requests))

    async def abort(self, request_id: str) -> None:
        """End a request now."""
        self._engine.abort(request_id)

    async def control(self, call: Control) -> object:
        """Have a control call carried out between two ticks."""
        return await asyncio.wrap_future(self._engine.control(call))

    def snapshot(self) -> Snapshot:
        """How busy the stage is, now."""
        return self._engine.snapshot()

    def progress(self) -> Progress:
        """How far the current tick is."""
        return self._engine.progress()

    def check_health(self) -> None:
        """Raises: EngineDeadError when nothing will be served again."""
        self._engine.check_health()

    def close_admission(self) -> None:
        """Admit nothing from now on; finish what is there."""
        self._engine.close_admission()

    async def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there. False: not everything has ended."""
        return await asyncio.to_thread(self._engine.drain, patience_s)


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """From the engine's thread. A closed event loop has no consumer left to wake."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(news.set)
