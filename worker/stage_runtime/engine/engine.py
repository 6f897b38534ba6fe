"""The engine: what a stage client talks to. It has phases, one loop thread, and an end that always comes.

Knows neither which executor it runs nor HTTP.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock, Thread, current_thread
from typing import ClassVar

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control, Outstanding
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError, NotAdmitting
from stage_runtime.core.request import Request
from stage_runtime.engine.base import Refusal, StageEngine, as_group_death, closed
from stage_runtime.engine.loop import ENDING_S, Loop
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.pace import Pace
from stage_runtime.engine.phase import STARTING, Phase, Progress
from stage_runtime.engine.request_table import RequestTable
from stage_runtime.engine.streams import Stream
from stage_runtime.engine.warmup import warm_up
from stage_runtime.executor.base import Executor
from stage_runtime.sched.base import BaseScheduler, Snapshot

log = logging.getLogger(__name__)


class Engine(StageEngine):
    """Owns the loop thread and, through it, the executor.

    Without a thread: call `load`, then `tick` by hand, all from one thread.
    """

    default_runner_class: ClassVar[str | None] = None
    """Import path of the runner that a subclass wants in each rank; what the stage's spec names wins over it."""

    def __init__(  # noqa: PLR0913 - what an engine is made of
        self,
        *,
        build_executor: Callable[[], Executor],
        scheduler: BaseScheduler,
        startup_timeout_s: float,
        warmup: Sequence[Sequence[Request]] = (),
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        name: str = "engine",
    ) -> None:
        """`build_executor` runs in the loop thread, since the thread that builds an executor must use it.

        `warmup`: groups of requests that run before any are admitted, those of a group together.
        `startup_timeout_s`: how long loading may take, and any tick whose like hasn't been measured.
        `pace`: what follows from measured ticks; None: a new one that starts from that timeout.
        """
        super().__init__(name, startup_timeout_s, clock)
        self._build_executor = build_executor
        self._warmup = warmup
        pace = pace or Pace(startup_timeout_s=startup_timeout_s)
        self._table = RequestTable(scheduler, pace, clock, lambda: self._loop.wake())
        self._loop = Loop(self._table, clock, startup_timeout_s)
        self._thread: Thread | None = None
        self._executor: Executor | None = None
        self._executor_closing = Lock()
        self._executor_closed = False

    def observe(self, observer: Observer) -> None:
        self._table.observe(observer)

    # Start

    def start(self) -> None:
        # A daemon: a device that hangs must not keep the process from leaving with its exit code. `close` joins it.
        thread = Thread(target=self._main, name=f"{self._name}-loop", daemon=True)
        self._claim(thread)
        thread.start()

    def load(self) -> None:
        """Load and warm up in the calling thread, which must then do all the ticking and closing.

        Raises: what loading or warm-up raised; everything is closed by then.
        """
        self._claim(None)
        try:
            self._open()
        except BaseException as error:
            self._die(error)
            raise

    def tick(self) -> bool:
        """One turn of the loop, for whoever drives it by hand. False when there was nothing to do."""
        try:
            return self._loop.tick()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is dead and says so
            self._die(error)
            return False

    # Requests

    def admit(self, requests: Sequence[Request]) -> Future[list[Stream]]:
        admitted: Future[list[Stream]] = Future()
        admitted.set_result(self._table.admit(requests))
        return admitted

    def abort(self, request_id: str) -> None:
        self._table.abort(request_id)

    def control(self, call: Control) -> Future[object]:
        return self._loop.call(call)

    # Observers

    @property
    def capability(self) -> Capability:
        if self._executor is None:
            raise NotAdmitting("the model isn't loaded")
        return self._executor.capability

    def snapshot(self) -> Snapshot:
        return self._table.snapshot()

    def progress(self, now_s: float | None = None) -> Progress:
        return self._loop.progress(self._clock() if now_s is None else now_s)

    def outstanding(self) -> Future[dict[str, int]]:
        answer: Future[dict[str, int]] = Future()

        def count(runner: Future[object]) -> None:
            held = self._table.outstanding()
            if runner.exception() is not None:
                answer.set_result(held)  # closed or dead: there is no runner left
            elif isinstance(counts := runner.result(), dict):
                answer.set_result(held | counts)
            else:
                answer.set_exception(InternalError(f"the executor counts with {counts!r}; expected a dict"))

        self._loop.call(Outstanding()).add_done_callback(count)
        return answer

    # End

    def close_admission(self) -> None:
        with self._life:
            if self._phase is Phase.READY:
                self._table.shut(lambda: NotAdmitting("the stage is draining"))
                self._move(Phase.DRAINING)

    def drain(self, patience_s: float) -> bool:
        self.close_admission()
        return self._table.wait_empty(patience_s) and self._phase is Phase.DRAINING

    def close(self, timeout_s: float = 10.0) -> None:
        """As for every engine.

        Raises: EngineHung when the loop is still in one tick after `timeout_s`; the executor has then been closed from
        outside, as far as it let itself be within as long again. A loop that moves on, or is through its ticks, is
        waited for: on a busy machine that takes its time.
        """
        thread = self._thread
        self._end(Phase.CLOSED, closed)
        if thread is current_thread():
            return  # its own last act closes the executor
        if thread is None:
            self._close_executor()
        elif not self._loop.has_ended(thread, timeout_s):
            self._close_over_stuck_loop(timeout_s)

    # How

    def _main(self) -> None:
        try:
            self._open()
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - SystemExit here would leave every stream open
            self._die(error)
        finally:
            self._close_executor()

    def _claim(self, thread: Thread | None) -> None:
        with self._life:
            self._begin()
            self._thread = thread
            self._loop.note_loading()

    def _open(self) -> None:
        """Load, warm up, admit."""
        try:
            self._executor = self._build_executor()
            self._loop.attach(self._executor)
            self._executor.when_dead(self._die)
            if self._advance(Phase.LOADING, Phase.WARMING):
                warm_up(self._table, self._loop, self._warmup, self.note_start)
        except BaseException:
            self._close_executor()  # whoever waits for the error finds everything closed
            raise
        with self._life:
            if self._advance(Phase.WARMING, Phase.READY):
                self._table.open()

    def _reason(self, error: BaseException) -> BaseException:
        traceback.clear_frames(error.__traceback__)  # they hold what the model was working on
        if isinstance(error, EngineDeadError | InternalError) or self._phase in STARTING:
            return error
        reason = InternalError(words_of(error))
        reason.__cause__ = error
        return reason

    def _refuse(self, refusal: Refusal) -> None:
        self._loop.stop(refusal)
        self._table.end_all(refusal(), refusal)

    def _give_up(self, death: BaseException) -> None:
        if self._executor is not None:
            self._executor.give_up(as_group_death(death))

    def _check(self) -> None:
        if self._executor is not None:
            self._executor.health()
        super()._check()

    def _advance(self, before: Phase, after: Phase) -> bool:
        """Move on, unless the engine was closed meanwhile."""
        with self._life:
            if self._phase is before:
                self._move(after)
            return self._phase is after

    def _close_executor(self) -> None:
        """Close it once. A failure here is logged: there is nobody left who could act on it."""
        with self._executor_closing:
            if self._executor is None or self._executor_closed:
                return
            self._executor_closed = True
            try:
                self._executor.close()
            except Exception:
                log.exception("executor did not close", extra={"engine": self._name})

    def _close_over_stuck_loop(self, timeout_s: float) -> None:
        closer = Thread(target=self._close_executor, name=f"{self._name}-closer", daemon=True)
        closer.start()
        closer.join(timeout_s)
        outcome = "is not closed either" if closer.is_alive() else "was closed from outside"
        progress = self.progress()
        where = f"is stuck in tick {progress.tick} for {progress.elapsed_s:.1f} s"
        if progress.limit_s is None:
            where = f"has not let go of its executor for {ENDING_S:.0f} s"
        raise EngineHung(f"{self._name} {where}; its executor {outcome}")
