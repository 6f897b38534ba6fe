"""A stage whose engine lives in a child process, as a server sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stage_runtime.core.request import Request
from stage_runtime.hosting.inline import InlineStage
from stage_runtime.hosting.outcomes import StreamOutcomes
from stage_runtime.hosting.remote_engine import RemoteEngine


class RemoteStage(InlineStage):
    """StageClient of an engine in a child process: as of one in this process, but that admission is awaited."""

    def __init__(self, engine: RemoteEngine) -> None:
        super().__init__(engine)
        self._remote = engine

    async def submit(self, requests: Sequence[Request]) -> StreamOutcomes:
        """Admit all of `requests`, or none, as the child says."""
        streams = await asyncio.wrap_future(self._remote.admit(requests))
        return StreamOutcomes(streams)
