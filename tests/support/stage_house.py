"""A stage in either of its homes: the engine in this process, or in a child of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stage_runtime.assemble import client_of
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.engine.base import StageEngine
from stage_runtime.engine.engine import Engine
from stage_runtime.hosting.client import StageClient
from support.scripted import PATIENCE_S
from support.stage_child import Options, argument, build, child_engine

Scene = Callable[[StageClient], Awaitable[None]]


class House:
    """Makes engines of one kind, `inline` or `child`, and closes them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list[StageEngine] = []

    def engine(self, **options: Any) -> StageEngine:
        """One that is started."""
        asked = Options(**options)
        self._made.append(build(argument(asked)) if self._kind == "inline" else child_engine(asked))
        self._made[-1].start()
        return self._made[-1]

    def play(self, scene: Scene, **options: Any) -> StageEngine:
        """Run `scene` on a stage that is ready."""
        engine = self.engine(**options)
        engine.wait_ready(PATIENCE_S)

        async def played() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scene(client_of(engine))

        asyncio.run(played())
        return engine

    def close(self) -> None:
        """Close them all; what hangs in this process can't be ended."""
        for engine in self._made:
            try:
                engine.close(0.2)
            except EngineDeadError:
                assert isinstance(engine, Engine)
