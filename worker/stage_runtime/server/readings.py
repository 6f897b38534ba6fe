"""What a stage says about itself, in the words of the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from stage_runtime.core.control import Outstanding
from stage_runtime.core.errors import NotAdmitting, StageError
from stage_runtime.engine.phase import Phase
from stage_runtime.metrics import Load
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.stage.client import StageClient

PATIENCE_S: Final = 0.25  # a scrape waits no longer than this for a tick to end


class StageReadings:
    """Reads one stage, at each scrape anew."""

    def __init__(self, stage: StageClient, model: ResolvedModel, served_name: str) -> None:
        self._stage = stage
        self._model = model
        self._served_name = served_name
        self._held: Mapping[str, int] = {}

    async def count_held(self) -> None:
        """Ask what the runner holds. It is asked between two ticks: within a long one there is no answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                counts = await self._stage.control(Outstanding())
        except (TimeoutError, StageError):
            counts = None
        self._held = counts if isinstance(counts, dict) else {}

    def outstanding(self) -> Mapping[str, int]:
        """What the engine holds now, and what `count_held` found with the runner, by kind."""
        load = self._stage.snapshot()
        return {"records": load.live, "untold": load.untold, **self._held}

    def load(self) -> Load:
        """How busy the engine is now; true also during a long tick."""
        return self._stage.snapshot()

    def ticks(self) -> int:
        """Turns of the engine's loop so far."""
        return self._stage.progress().tick

    def phases(self) -> Mapping[str, bool]:
        """Every phase, True for the present one."""
        present = self._stage.phase
        return {phase.value: phase is present for phase in Phase}

    def model(self) -> Mapping[str, str] | None:
        """Name, pipeline and whether it batches; None until it is loaded."""
        try:
            found = self._stage.capability
        except NotAdmitting:
            return None
        return {
            "model": self._served_name,
            "pipeline": self._model.record.pipeline_class,
            "modality": found.modality.value,
            "batches": str(found.batches).lower(),
        }
