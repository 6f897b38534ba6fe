"""What a stage says about itself, in the words of the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from stage_runtime.core.control import Health, Outstanding, RankHealth
from stage_runtime.core.errors import NotAdmitting, StageError
from stage_runtime.engine.phase import Phase
from stage_runtime.hosting.client import StageClient
from stage_runtime.metrics import Load, Tick
from stage_runtime.pipelines.contract import ResolvedModel

PATIENCE_S: Final = 0.25  # a scrape waits no longer than this for a tick to end


class StageReadings:
    """Reads one stage, at each scrape anew."""

    def __init__(
        self, stage: StageClient, model: ResolvedModel, served_name: str, world: Mapping[str, int]
    ) -> None:
        self._stage = stage
        self._model = model
        self._served_name = served_name
        self._world = world
        self._held: Mapping[str, int] = {}
        self._ranks: Sequence[RankHealth] = ()

    async def ask(self) -> None:
        """Ask the ranks how they are and what they hold, between two ticks: within a long one nobody answers."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                counts, ranks = await asyncio.gather(
                    self._stage.control(Outstanding()), self._stage.control(Health())
                )
        except (TimeoutError, StageError):
            counts = ranks = None
        self._held = counts if isinstance(counts, dict) else {}
        self._ranks = ranks if isinstance(ranks, tuple) else ()

    def outstanding(self) -> Mapping[str, int]:
        """What the engine holds now, and what `ask` found with the runner, by kind."""
        load = self._stage.snapshot()
        return {"records": load.live, "untold": load.untold, **self._held}

    def load(self) -> Load:
        """How busy the engine is now; true also during a long tick."""
        return self._stage.snapshot()

    def progress(self) -> Tick:
        """How far the engine's loop is; true also during a long tick."""
        return self._stage.progress()

    def world(self) -> Mapping[str, int]:
        """What was given to this life of the replica."""
        return self._world

    def ranks(self) -> Sequence[RankHealth]:
        """What the ranks said when they were last asked."""
        return self._ranks

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
