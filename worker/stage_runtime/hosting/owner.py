"""What the owner of a stage does with its engine, wherever that lives. The owner starts and closes it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import OnDeath
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.engine.streams import Stream
from stage_runtime.sched.base import Snapshot


class StageEngine(Protocol):
    """`engine.engine.Engine` and `stage.remote.RemoteEngine`; what they do and raise is said there. Any thread."""

    @property
    def phase(self) -> Phase:
        """Where the engine is in its life."""

    @property
    def death(self) -> BaseException | None:
        """Why it is dead; None when it isn't."""

    @property
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of waves and requests from now on."""

    def start(self) -> None:
        """Begin to load. Returns at once."""

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until requests are admitted. Raises: what loading raised."""

    def add(self, requests: Sequence[Request]) -> list[Stream]:
        """Admit all of `requests`, or none."""

    def abort(self, request_id: str) -> None:
        """End a request now."""

    def control(self, call: Control) -> Future[object]:
        """Have a control call carried out between two ticks."""

    def outstanding(self) -> Future[dict[str, int]]:
        """What is held for requests, by kind; all 0 at rest."""

    def snapshot(self) -> Snapshot:
        """How busy it is."""

    def progress(self) -> Progress:
        """How far the current tick is."""

    def check_health(self) -> None:
        """Raises: EngineDeadError when nothing will be served again."""

    def when_dead(self, callback: OnDeath) -> None:
        """Call `callback` once when it dies, or now."""

    def close_admission(self) -> None:
        """Admit nothing from now on."""

    def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there."""

    def close(self, timeout_s: float = 10.0) -> None:
        """End everything. Idempotent."""
