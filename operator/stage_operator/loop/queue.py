"""Which stage is worked on next: each once at a time, each but once in the line, after a wait where one is due.

`Line` decides with the clock passed in; `Queue` runs workers over it. A wait holds nobody else up, and a change that
comes meanwhile ends it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

PAUSE_S: Final = 0.05
"""Between two turns of a stage, so that events that come in a row, such as those of new pods, cost one."""
_MANY: Final = 1000

log = logging.getLogger(__name__)


class Retry(Exception):
    """The work could not be done now, for a reason that was to be expected: it is tried again after a wait."""

    def __init__(self, message: str, *, no_later_than: float | None = None) -> None:
        super().__init__(message)
        self.no_later_than: Final = no_later_than  # by the clock, whatever the wait


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits after failures in a row: each twice the one before. Seconds."""

    first_s: float = 0.25
    longest_s: float = 30
    spread: float = 0.2
    """How far chance moves a wait to either side, as a part of it."""

    def wait_s(self, failures: int, jitter: float) -> float:
        """The wait after so many failures in a row; `jitter` is in [-1, 1]."""
        doubled = self.first_s * 2.0 ** min(failures - 1, 32)
        return min(doubled, self.longest_s) * (1 + jitter * self.spread)


@dataclass(frozen=True, slots=True)
class Turn(Generic[Key]):
    """Whose turn it is, and how long it had been in the line."""

    key: Key
    waited_s: float


class Line(Generic[Key]):
    """Keys that are due, keys that will be, and keys that are being worked on. All times are of one clock."""

    def __init__(self, backoff: Backoff | None = None, *, pause_s: float = 0.0) -> None:
        """`pause_s`: a key is taken so long after it was taken last, if not later."""
        self._backoff: Final = Backoff() if backoff is None else backoff
        self._pause_s: Final = pause_s
        self._taken: dict[Key, float] = {}  # when last
        self._ready: dict[Key, float] = {}  # since when; in order
        self._busy: set[Key] = set()
        self._again: dict[Key, float] = {}  # changed while being worked on
        self._timers: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []  # may hold timers that were replaced
        self._order = itertools.count()
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, now: float) -> None:
        """The key is due now, or after its pause. Changes nothing if it is in the line already."""
        self._timers.pop(key, None)
        if key in self._busy:
            self._again.setdefault(key, now)
        elif key in self._ready or (rested_at := self._rested_at(key)) <= now:
            self._ready.setdefault(key, now)
        else:
            self.add_at(key, rested_at)

    def add_at(self, key: Key, at: float) -> None:
        """The key is due at that time and not at the one set before. It still comes sooner if something changes."""
        self._timers[key] = at
        heapq.heappush(self._heap, (at, next(self._order), key))

    def take(self, now: float) -> Turn[Key] | None:
        """The key that has waited longest; it is being worked on until `done`."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._timers.get(key) == at:
                del self._timers[key]
                (self._again if key in self._busy else self._ready).setdefault(key, at)
        if not self._ready:
            return None
        key = next(iter(self._ready))
        since = self._ready.pop(key)
        self._busy.add(key)
        if self._pause_s:
            self._taken[key] = now
            if len(self._taken) > _MANY:
                self._taken = {key: at for key, at in self._taken.items() if at + self._pause_s > now}
        return Turn(key, now - since)

    def done(self, key: Key, *, again_at: float | None = None) -> None:
        """The work on it has succeeded; it is due again at that time, or when something changes."""
        self._failures.pop(key, None)
        self._leave(key, again_at)

    def failed(self, key: Key, now: float, jitter: float, *, no_later_than: float | None = None) -> float:
        """The work on it has failed: it is due again after the wait that is the answer."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s = self._backoff.wait_s(failures, jitter)
        if no_later_than is not None:
            wait_s = min(wait_s, max(0.0, no_later_than - now))
        self._leave(key, now + wait_s)
        return wait_s

    def hurry(self, now: float) -> None:
        """Whatever waits after a failure is due now: the cause may be gone."""
        for key in [key for key in self._failures if key in self._timers]:
            self.add(key, now)

    def forget(self, key: Key) -> None:
        """The key means nothing any more: no timer, no failures. One that is in the line stays there."""
        self._timers.pop(key, None)
        self._failures.pop(key, None)

    def next_at(self) -> float | None:
        """When the next timer is due; None without one."""
        while self._heap and self._timers.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def depth(self) -> int:
        """How many keys are due and not yet taken."""
        return len(self._ready) + len(self._again)

    def failing(self) -> int:
        """How many keys failed when they were last worked on."""
        return len(self._failures)

    def oldest_s(self, now: float) -> float:
        """How long the first in the line has been due; 0 for an empty one."""
        since = min(itertools.chain(self._ready.values(), self._again.values()), default=now)
        return max(0.0, now - since)

    def _rested_at(self, key: Key) -> float:
        return self._taken[key] + self._pause_s if key in self._taken else -math.inf

    def _leave(self, key: Key, again_at: float | None) -> None:
        self._busy.discard(key)
        if (since := self._again.pop(key, None)) is not None:
            if (rested_at := self._rested_at(key)) > since:
                self.add_at(key, rested_at)
            else:
                self._ready[key] = since
        elif again_at is not None:
            self.add_at(key, again_at)


class Queue(Generic[Key]):
    """Serves a line, some keys at a time, in one event loop. Nobody is served until it is opened."""

    def __init__(
        self,
        work: Callable[[Key, float], Awaitable[float | None]],
        *,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`work` gets a key and how long it waited; its answer is when to come again, by `clock`, or None."""
        self.line: Final[Line[Key]] = Line(pause_s=PAUSE_S)
        self._work = work
        self._workers = workers
        self._clock = clock
        self._open = False
        self._running: dict[asyncio.Task[None], float] = {}  # since when
        self._woken = False
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, keys: Iterable[Key]) -> None:
        """They are due now."""
        now = self._clock()
        for key in keys:
            self.line.add(key, now)
        self._wake()

    def hurry(self) -> None:
        """Don't let anything wait for an old failure."""
        self.line.hurry(self._clock())
        self._wake()

    def open(self) -> None:
        """Serve."""
        self._open = True
        self._wake()

    def close(self) -> None:
        """Serve nobody new. Who is being served learns it from his own fence."""
        self._open = False

    def oldest_s(self) -> float:
        """How long the first in the line has been due; 0 where nobody is meant to serve it."""
        return self.line.oldest_s(self._clock()) if self._open else 0.0

    def longest_s(self) -> float:
        """How long the slowest of those being served has been at it."""
        return max((self._clock() - since for since in self._running.values()), default=0.0)

    async def stop(self, grace_s: float) -> None:
        """Serve nobody new, let what runs end within the grace, and cancel the rest."""
        self.close()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=grace_s)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _wake(self) -> None:
        """Soon, so that what is added together is served together."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        while self._open and len(self._running) < self._workers:
            if (turn := self.line.take(self._clock())) is None:
                break
            task = asyncio.create_task(self._serve(turn))
            self._running[task] = self._clock()
            task.add_done_callback(self._ended)
        self._set_alarm()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._open and (at := self.line.next_at()) is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, at - self._clock()), self._wake)

    async def _serve(self, turn: Turn[Key]) -> None:
        try:
            again_at = await self._work(turn.key, turn.waited_s)
        except Retry as error:
            wait_s = self.line.failed(
                turn.key, self._clock(), random.uniform(-1, 1), no_later_than=error.no_later_than
            )
            log.warning("it is tried again", extra={"why": str(error), "in_s": round(wait_s, 2)})
        except Exception:  # the stage at fault waits and is tried again; the others go on
            wait_s = self.line.failed(turn.key, self._clock(), random.uniform(-1, 1))
            log.exception("it failed, and is tried again", extra={"in_s": round(wait_s, 2)})
        except asyncio.CancelledError:
            self.line.done(turn.key)
            raise
        else:
            self.line.done(turn.key, again_at=again_at)
