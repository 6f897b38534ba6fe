"""Finishing early what one asked for oneself: by an id that nobody but its client was told.

The image so far is decoded and delivered as if it were done; to take a request back a client just leaves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.request import Request
from stage_runtime.hosting.client import StageClient
from stage_runtime.server.http.errors import REFUSALS

PATH: Final = "/v1/requests/{finish_id}/finish"
FINISH_ID_HEADER: Final = "x-finish-id"
_ID_BYTES: Final = 24


class NothingToFinish(InvalidRequest):
    """The id is of no request that is being answered here, or its client was told another one."""

    status = 404
    code = "request_not_found"

    def __init__(self) -> None:
        super().__init__("there is no such request, or it has ended", "finish_id")


class NotRunning(InvalidRequest):
    """All of the request still waits in the line: there is nothing yet that could be delivered."""

    status = 409
    code = "not_running"

    def __init__(self) -> None:
        super().__init__("nothing of this request is being computed just now", "finish_id")


class FinishResponse(BaseModel):
    """Answer of POST /v1/requests/{finish_id}/finish."""

    finishing: int
    """Outputs that are ended after the step they are in. Those that wait in the line or are done aren't counted."""


class Finishing:
    """What is being answered as a stream, by the ids that its clients were told. Used on the event loop."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[str, ...]] = {}

    def add(self, requests: Sequence[Request]) -> str:
        """A new id for these requests, to be told to their client alone."""
        finish_id = secrets.token_urlsafe(_ID_BYTES)
        self._requests[finish_id] = tuple(request.request_id for request in requests)
        return finish_id

    def discard(self, finish_id: str) -> None:
        """The answer has ended."""
        self._requests.pop(finish_id, None)

    def requests_of(self, finish_id: str) -> tuple[str, ...]:
        """The requests of that id. Raises: NothingToFinish."""
        try:
            return self._requests[finish_id]
        except KeyError:
            raise NothingToFinish from None


def routes(stage: StageClient, finishing: Finishing) -> APIRouter:
    """POST /v1/requests/{finish_id}/finish."""
    router = APIRouter()

    @router.post(PATH, responses=dict(REFUSALS))
    async def finish(finish_id: str) -> FinishResponse:
        """Skip the steps that are left, and have the answer as it is. The id is the `x-finish-id` of a stream."""
        requests = finishing.requests_of(finish_id)
        if not stage.capability.early_stop:
            raise InvalidRequest("this model can't end a request early", "finish_id")
        # All at once: one that ended first would let another one begin.
        ended = await asyncio.gather(*(_end(stage, request_id) for request_id in requests))
        if not any(ended):
            raise NotRunning
        return FinishResponse(finishing=sum(ended))

    return router


async def _end(stage: StageClient, request_id: str) -> bool:
    """False if it waits, or is done."""
    try:
        await stage.control(StopEarly(request_id))
    except InvalidRequest:
        return False
    return True
