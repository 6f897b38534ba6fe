"""What a server may ask of a stage, wherever its engine lives. Everything is asyncio, everything is a plain value."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from stage_api.startup_progress import StartProgress
from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.outcome import Outcome, Progressed
from stage_runtime.core.request import Request
from stage_runtime.engine.base import StageEngine
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.engine.streams import Stream
from stage_runtime.sched.base import Snapshot


class Outcomes:
    """What becomes of the requests of one submission, as it comes: one terminal outcome for each, then the end.

    Closing it, cancelling a wait for the next outcome, or dropping it takes back what hasn't ended. The engine ends
    every wait: also its death and its close give every request a terminal outcome.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._open = list(streams)
        self._arrived = asyncio.Event()
        # NB: bound to the event, not to this object: the engine must not keep its consumer alive.
        wake = partial(_wake, asyncio.get_running_loop(), self._arrived)
        for stream in streams:
            stream.subscribe(wake)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        """The next outcome of any of the requests."""
        try:
            while self._open:
                self._arrived.clear()
                if (outcome := self._take()) is not None:
                    return outcome
                await self._arrived.wait()  # ended by the engine
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


class StageClient:
    """One stage, for one event loop. Starting and closing its engine stays with the engine's owner.

    What is not awaited here is as `StageEngine` says.
    """

    def __init__(self, engine: StageEngine) -> None:
        self._engine = engine

    @property
    def phase(self) -> Phase:
        return self._engine.phase

    @property
    def death(self) -> BaseException | None:
        return self._engine.death

    @property
    def start_progress(self) -> StartProgress | None:
        return self._engine.start_progress

    @property
    def capability(self) -> Capability:
        return self._engine.capability

    async def submit(self, requests: Sequence[Request]) -> Outcomes:
        """Admit all of `requests`, or none.

        Raises: AdmissionFull, InvalidRequest, NotAdmitting, EngineDeadError.
        """
        admitted = self._engine.admit(requests)
        streams = admitted.result() if admitted.done() else await asyncio.wrap_future(admitted)
        return Outcomes(streams)

    async def abort(self, request_id: str) -> None:
        """End a request now. Unknown and ended ids are no error."""
        self._engine.abort(request_id)

    async def control(self, call: Control) -> object:
        """Have a control call carried out between two ticks. Raises: InvalidRequest when the model can't do it."""
        return await asyncio.wrap_future(self._engine.control(call))

    def snapshot(self) -> Snapshot:
        return self._engine.snapshot()

    def progress(self) -> Progress:
        return self._engine.progress()

    def check_health(self) -> None:
        self._engine.check_health()

    def close_admission(self) -> None:
        self._engine.close_admission()

    async def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there, for `patience_s` seconds. False: not everything has ended."""
        return await asyncio.to_thread(self._engine.drain, patience_s)


def _wake(loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
    """From the engine's thread. A closed event loop has no consumer left to wake."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(arrived.set)
