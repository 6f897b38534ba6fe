"""One worker in the engine's own process: no sockets, no copies, no torch.distributed (PARALLEL-INV-004).

A poll advances the wave by one tick; where nothing can move before an answer comes from elsewhere, it sleeps until that
is there. A hang can't be interrupted from inside; the engine's progress shows it. A
poisoned accelerator fails the executor for good: fail closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.core.outcome import ExecutorOutcome
from stage_runtime.core.wave import Wave
from stage_runtime.executor.answers import combined
from stage_runtime.ipc.messages import Answered
from stage_runtime.worker.worker import Worker


class UniExecutor:
    """Implements `executor.base.Executor` with a worker that `build` makes on the calling thread."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        self._worker: Worker | None = build()
        self._capability = self._worker.capability
        self._death: EngineDeadError | None = None
        self._wakes: SimpleQueue[None] = SimpleQueue()
        """NB: `put` of this queue alone may be called inside the garbage collector."""
        self._worker.wake_by(self.wake)

    @property
    def capability(self) -> Capability:
        return self._capability

    def submit(self, wave: Wave) -> None:
        with self._failing_closed():
            self._alive().submit(wave)

    def poll(self, deadline_s: float | None) -> Sequence[ExecutorOutcome]:
        """One tick; while paused, or while nothing can move, a wait for `wake` or `deadline_s`.

        A tick itself keeps no deadline.
        """
        with self._failing_closed():
            worker = self._alive()
            if not worker.paused and ((outcomes := worker.tick()) or not worker.waits):
                return outcomes
        with suppress(Empty):
            self._wakes.get(timeout=None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return []

    def abort(self, request_ids: Sequence[str]) -> None:
        with self._failing_closed():
            self._alive().abort(request_ids)

    def control(self, call: Control) -> object:
        """Carry out a control call; what each rank answers by itself is a tuple of one."""
        with self._failing_closed():
            value = self._alive().control(call)
        return combined(call, {0: Answered(rank=0, call_id=0, value=value)})

    def wake(self) -> None:
        if self._wakes.empty():
            self._wakes.put(None)

    def when_dead(self, callback: Callable[[EngineDeadError], None]) -> None:
        """Nothing dies here while nobody calls: whoever calls gets the death raised."""
        if self._death is not None:
            callback(self._death)

    def health(self) -> None:
        if self._death is not None:
            raise self._death

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _alive(self) -> Worker:
        self.health()
        if self._worker is None:
            raise EngineDeadError("the executor is closed")
        return self._worker

    @contextmanager
    def _failing_closed(self) -> Iterator[None]:
        """Remembers the death of the group that an exception stands for."""
        try:
            yield
        except EngineDeadError as death:
            self.give_up(death)
            raise

    def give_up(self, death: EngineDeadError) -> None:
        self._death = self._death or death
