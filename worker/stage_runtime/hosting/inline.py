"""A stage whose engine lives in the caller's process: no socket, no copy, no codec."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.request import Request
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.hosting.outcomes import StreamOutcomes
from stage_runtime.hosting.owner import StageEngine
from stage_runtime.sched.base import Snapshot


class InlineStage:
    """StageClient of an engine in this process. The engine's starting and closing stay with its owner."""

    def __init__(self, engine: StageEngine) -> None:
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

    async def submit(self, requests: Sequence[Request]) -> StreamOutcomes:
        """Admit all of `requests`, or none."""
        return StreamOutcomes(self._engine.add(requests))

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
