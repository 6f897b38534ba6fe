"""How an engine in another process is, from what it said last and how long ago that was. Pure: time comes in."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from stage_runtime.engine.phase import Progress
from stage_runtime.hosting.messages import Status
from stage_runtime.sched.base import Snapshot

SILENCE_S: Final = 30.0
"""How long a process that owes something may say nothing between two ticks; within one, the tick's own limit holds."""
NOTABLE_S: Final = 1.0
"""Silence that is shown. It says how it is many times a second while it owes something."""

NO_LOAD: Final = Snapshot()


class LastHeard:
    """Not thread-safe; its owner serialises the calls. Times in seconds of one monotonic clock."""

    def __init__(self, startup_timeout_s: float) -> None:
        self._startup_timeout_s = startup_timeout_s
        self._status: Status | None = None
        self._heard_s = 0.0
        self._asked_s = 0.0

    @property
    def status(self) -> Status | None:
        """What it said last about itself."""
        return self._status

    @property
    def tick(self) -> int:
        """The last one that it told of."""
        return 0 if self._status is None else self._status.progress.tick

    def heard(self, now_s: float, status: Status | None = None) -> None:
        """It said something, or was started."""
        self._heard_s = now_s
        self._status = status or self._status

    def asked(self, now_s: float) -> None:
        """It owed nothing, and was asked for something."""
        self._asked_s = now_s

    @property
    def at_rest(self) -> bool:
        """It said that all requests have ended and the runner has forgotten them."""
        return self._status is not None and not self._status.load.live and not self._status.load.untold

    @property
    def is_idle(self) -> bool:
        """Its loop does nothing that could hang."""
        return self._status is not None and self._status.progress.limit_s is None

    def snapshot(self, now_s: float) -> Snapshot:
        """How busy it was when it last said so; who waits has waited on since."""
        if self._status is None:
            return NO_LOAD
        load = self._status.load
        if not load.waiting:
            return load
        return replace(load, oldest_age_s=load.oldest_age_s + now_s - self._heard_s)

    def emptied(self) -> Snapshot:
        """The same once it has ended."""
        if self._status is None:
            return NO_LOAD
        load = self._status.load
        return replace(NO_LOAD, capacity=load.capacity, queue_limit=load.queue_limit)

    def progress(self, now_s: float, *, owes: bool) -> Progress:
        """How far its tick is; goes on counting while it says nothing. `owes`: somebody waits for it."""
        if self._status is None:
            return Progress(0, now_s - self._heard_s, self._startup_timeout_s)
        told = self._status.progress
        if told.limit_s is not None:
            return replace(told, elapsed_s=told.elapsed_s + now_s - self._heard_s)
        silent_s = now_s - max(self._heard_s, self._asked_s)
        return Progress(told.tick, silent_s, SILENCE_S) if owes and silent_s > NOTABLE_S else told
