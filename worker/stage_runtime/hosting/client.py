"""What a server may ask of a stage, wherever its engine lives. Everything is asyncio, everything is a plain value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.outcome import Outcome
from stage_runtime.core.request import Request
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.sched.base import Snapshot


class Outcomes(Protocol):
    """What becomes of the requests of one submission, as it comes: one terminal outcome for each, then the end.

    Closing it, cancelling a wait for the next outcome, or dropping it takes back what hasn't ended.
    """

    def __aiter__(self) -> Self:
        """Itself."""

    async def __anext__(self) -> Outcome:
        """The next outcome of any of the requests."""

    async def aclose(self) -> None:
        """Take back the requests that haven't ended. Idempotent."""


class StageClient(Protocol):
    """One stage. Belongs to one event loop."""

    @property
    def phase(self) -> Phase:
        """Where the engine is in its life; READY means that requests are admitted."""

    @property
    def death(self) -> BaseException | None:
        """Why the engine is dead; None when it isn't."""

    @property
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""

    async def submit(self, requests: Sequence[Request]) -> Outcomes:
        """Admit all of `requests`, or none.

        Raises: AdmissionFull, InvalidRequest, NotAdmitting, EngineDeadError.
        """

    async def abort(self, request_id: str) -> None:
        """End a request now. Unknown and ended ids are no error."""

    async def control(self, call: Control) -> object:
        """Have a control call carried out between two ticks. Raises: InvalidRequest when the model can't do it."""

    def snapshot(self) -> Snapshot:
        """How busy the stage is, now."""

    def progress(self) -> Progress:
        """How far the current tick is."""

    def check_health(self) -> None:
        """Raises: EngineDeadError when nothing will be served again."""

    def close_admission(self) -> None:
        """Admit nothing from now on; finish what is there."""

    async def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there, for `patience_s` seconds. False: not everything has ended."""
