"""From a client's wishes to outcomes under way, for every modality: checked, admitted, refused while it can still be.

The one thing it holds to: a client that leaves takes its work with it, within one step.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final, Self

from stage_runtime.core.errors import AdmissionFull, EngineDeadError, InvalidRequest, NotAdmitting
from stage_runtime.core.outcome import Failed, Outcome, as_error
from stage_runtime.core.request import Request
from stage_runtime.hosting.client import Outcomes
from stage_runtime.pipelines.arguments import build_requests, check_prompt
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.server.http.endpoints import Served
from stage_runtime.server.http.errors import ModelNotFound

PATIENCE_S: Final = 1.0
"""How long a stream's answer waits for its first outcome, so that a fault found at once is a status and no event."""


def requests_of(served: Served, wishes: Wishes, request_id: str, model: str | None) -> list[Request]:
    """The requests of one ask. `model`: the name that the client gave, if any.

    Raises: ModelNotFound; InvalidRequest naming the wish.
    """
    if model not in (None, served.name):
        raise ModelNotFound(model, served.name)
    # Clients may give one id to several requests; the engine's ids are unique.
    unique_id = f"{request_id}.{secrets.token_hex(4)}"
    requests = build_requests(served.model, wishes, request_id=unique_id)
    check_prompt(served.model, wishes)
    return requests


async def submit(served: Served, requests: Sequence[Request]) -> Submission:
    """Admit all of `requests`, or none. Raises: AdmissionFull, NotAdmitting, EngineDeadError."""
    try:
        served.drain.check()
        return Submission(await served.stage.submit(requests))
    except (AdmissionFull, NotAdmitting, EngineDeadError):
        served.metrics.on_rejected(len(requests))
        raise


class Submission:
    """The outcomes of one ask, of which the first can be waited for before anything is answered."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._first: asyncio.Future[Outcome] | None = None

    async def begin(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait for the first outcome, but no longer than `patience_s`; always True.

        Raises: InvalidRequest, if a request turns out to be wrong that early.
        """
        self._first = asyncio.ensure_future(self._outcomes.__anext__())
        await asyncio.wait({self._first}, timeout=patience_s)
        if self._first.done() and isinstance(outcome := self._first.result(), Failed):
            error = as_error(outcome)
            if isinstance(error, InvalidRequest):
                raise error
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        """The next outcome of any of the requests."""
        if self._first is None:
            return await self._outcomes.__anext__()
        first = await self._first
        self._first = None
        return first

    async def aclose(self) -> None:
        """Take back the requests that haven't ended. Idempotent."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._outcomes.aclose()
