"""The engine's loop: one thread, and the only user of the executor.

Policy is the scheduler's, execution the executor's; a tick only carries one to the other.
Upholds: DIFF-RUNTIME-INV-002.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Final

from stage_runtime.core.control import Control, Pause, Resume, Sleep, Wake, patience_s
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError, EngineHung, RequestError, StageError
from stage_runtime.core.suspected_hang import LOOK_S, SuspectedHang
from stage_runtime.engine.base import Refusal
from stage_runtime.engine.phase import Progress
from stage_runtime.engine.request_table import RequestTable, Turn
from stage_runtime.executor.base import Executor
from stage_runtime.processes.wakeup import Wakeup

ENDING_S: Final = 30.0
"""A loop that is through its ticks lets go of its executor within this: longer than any executor's own deadlines."""


class Loop:
    """Ticks. Everything but `call`, `progress` and `stop` belongs to the thread that built the executor."""

    def __init__(self, table: RequestTable, clock: Callable[[], float], startup_timeout_s: float) -> None:
        self._table = table
        self._wakeup = Wakeup()
        self._clock = clock
        self._startup_timeout_s = startup_timeout_s
        self._executor: Executor | None = None
        self._calls: deque[tuple[Control, Future[object]]] = deque()
        self._calls_lock = Lock()
        self._stopped: Refusal | None = None
        """Set once the loop is to end: makes the error for whoever still wants something."""
        self._stillness = SuspectedHang()
        self._paused = False
        self._ticks = 0
        self._beat: tuple[int, float, float] | None = None
        """Number, begin and limit of what the thread does; None while idle. Replaced whole, so read without a lock."""

    def note_loading(self) -> None:
        """The executor is being built: that counts as tick 0."""
        self._beat = (0, self._clock(), self._startup_timeout_s)

    def attach(self, executor: Executor) -> None:
        self._executor = executor
        self._beat = None

    def run(self) -> None:
        """Tick until stopped; sleep while there is nothing to do."""
        while not self.stopped:
            if not self.tick():
                self.rest()

    def tick(self) -> bool:
        """One turn: schedule, submit, answer calls, poll, update. False when there was nothing to do.

        Raises: EngineDeadError when the group is unusable, or when nothing moves; whatever else breaks.
        """
        executor = self._executor
        if executor is None or self.stopped:
            return False
        turn = self._table.begin_turn(paused=self._paused)
        if turn.wave.is_empty and not turn.polls:
            return self._answer_calls(executor)
        began_s = self._begin(turn)
        if not turn.wave.is_empty:
            executor.submit(turn.wave)
        paused = self._paused
        self._answer_calls(executor)
        # After a pause or a resume the turn is another one: what it would wait for may never come.
        if turn.polls and self._paused == paused:
            patience_s = turn.patience_s
            outcomes = executor.poll(None if patience_s is None else began_s + max(patience_s, LOOK_S))
            what = self._table.end_turn(turn, outcomes)
            overdue = what is not None and not self._paused
            if self._stillness.confirmed("still", overdue=overdue, now_s=self._clock()):
                raise EngineHung(str(what))
        self._beat = None
        return True

    def rest(self) -> None:
        """Sleep until there is something to do."""
        with self._calls_lock:
            if self._calls or self._stopped is not None:
                return
        self._wakeup.wait(self._table.pause_s())

    # Any thread

    @property
    def stopped(self) -> bool:
        """True once the loop ends after its current tick."""
        return self._stopped is not None

    def wake(self) -> None:
        """Have the thread look for work soon, wherever it waits. Takes no lock: also inside the garbage collector."""
        self._wakeup.ring()
        if self._executor is not None:
            self._executor.wake()

    def call(self, call: Control) -> Future[object]:
        """Have a control call carried out between two ticks."""
        future: Future[object] = Future()
        with self._calls_lock:
            refusal = self._stopped
            if refusal is None:
                self._calls.append((call, future))
        if refusal is not None:
            future.set_exception(refusal())
        self.wake()
        return future

    def stop(self, refusal: Refusal) -> None:
        """End after the current tick, and fail the calls that weren't carried out. Idempotent."""
        with self._calls_lock:
            self._stopped = self._stopped or refusal
            calls = list(self._calls)
            self._calls.clear()
        for _, future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal())
        self.wake()

    def progress(self, now_s: float) -> Progress:
        """How far the current tick is."""
        beat = self._beat
        if beat is None:
            return Progress(self._ticks, 0.0, None)
        tick, began_s, limit_s = beat
        return Progress(tick, now_s - began_s, limit_s)

    def has_ended(self, thread: Thread, timeout_s: float) -> bool:
        """Wait for the loop's end while it moves. Time in which nobody could watch it counts little."""
        doing, still_s = self._beat, 0.0
        while still_s < (ENDING_S if doing is None else timeout_s):
            looked_s = time.monotonic()
            thread.join(min(LOOK_S, timeout_s))
            if not thread.is_alive():
                return True
            before, doing = doing, self._beat
            still_s = 0.0 if doing is not before else still_s + min(time.monotonic() - looked_s, LOOK_S)
        return False

    # How

    def _begin(self, turn: Turn) -> float:
        self._ticks += 1
        began_s = self._clock()
        self._beat = None if turn.limit_s is None else (self._ticks, began_s, turn.limit_s)
        return began_s

    def _answer_calls(self, executor: Executor) -> bool:
        """Carry out the calls that are there. False when there were none."""
        with self._calls_lock:
            calls = list(self._calls)
            self._calls.clear()
        for place, (call, future) in enumerate(calls):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._carry_out(executor, call))
            except RequestError as refused:
                future.set_exception(refused)
            except BaseException as error:
                late = (one for _, one in calls[place + 1 :] if one.set_running_or_notify_cancel())
                for broken in (future, *late):
                    broken.set_exception(self._breakage(error))
                raise
        return bool(calls)

    def _carry_out(self, executor: Executor, call: Control) -> object:
        """The answer to a call. It may take its own time, on top of the tick that a rank is in, and no more."""
        beat, now_s = self._beat, self._clock()
        tick_s = self._startup_timeout_s if beat is None else beat[2]
        self._beat = (self._ticks, now_s, tick_s + patience_s(call))
        try:
            answer = executor.control(call)
        finally:
            self._beat = None if beat is None else (beat[0], self._clock(), beat[2])
        if isinstance(call, Pause | Sleep):
            self._paused, self._beat = True, None
        elif isinstance(call, Resume | Wake):
            self._paused = False
        self._table.note_moved()
        return answer

    @staticmethod
    def _breakage(error: BaseException) -> StageError:
        if isinstance(error, StageError):
            return error
        return EngineDeadError(f"control call broke the engine: {words_of(error)}")
