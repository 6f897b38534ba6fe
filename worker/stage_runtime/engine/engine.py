"""The engine: what a stage client talks to. It has phases, one loop thread, and an end that always comes.

Knows neither which executor it runs nor HTTP.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Lock, Thread, current_thread
from typing import ClassVar, Final

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control, Outstanding
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import (
    EngineDeadError,
    EngineHung,
    InternalError,
    ModelError,
    NotAdmitting,
    OutOfDeviceMemory,
    StageError,
)
from stage_runtime.core.request import Request
from stage_runtime.core.suspicion import Suspicion
from stage_runtime.engine.desk import Desk, Refusal
from stage_runtime.engine.loop import ENDING_S, Bell, Loop
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.pace import Pace
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.engine.streams import Stream
from stage_runtime.engine.warmup import warm_up
from stage_runtime.executor.base import Executor
from stage_runtime.sched.base import BaseScheduler, Snapshot

log = logging.getLogger(__name__)

OnDeath = Callable[[BaseException], None]

SLACK_S: Final = 5.0
"""Whoever waits for the start waits a little longer than it may take, so as to hear what it failed of."""

_STARTING: Final = (Phase.CREATED, Phase.LOADING, Phase.WARMING)


class Engine:
    """Owns the loop thread and, through it, the executor. Every method may be called from any thread.

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
        self._build_executor = build_executor
        self._warmup = warmup
        self._startup_timeout_s = startup_timeout_s
        self._clock = clock
        self._name = name
        bell = Bell()
        self._desk = Desk(scheduler, pace or Pace(startup_timeout_s=startup_timeout_s), clock, bell.ring)
        self._loop = Loop(self._desk, bell, clock, startup_timeout_s)
        self._suspicion, self._looking = Suspicion(), Lock()
        self._life = Condition()
        """Guards phase, death, callbacks and thread; told when the phase moves. Taken before the desk's lock."""
        self._phase = Phase.CREATED
        self._death: BaseException | None = None
        self._on_death: list[OnDeath] = []
        self._thread: Thread | None = None
        self._executor: Executor | None = None
        self._executor_closing = Lock()
        self._executor_closed = False

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of waves and requests from now on; before it, nobody is told."""
        self._desk.observe(observer)

    # Start

    def start(self) -> None:
        """Start the loop thread: it loads the model, warms up, and serves. Returns at once."""
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

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until requests are admitted, by default for the startup timeout.

        Raises: what loading or warm-up raised; EngineHung after the timeout; NotAdmitting when it was closed.
        """
        patience_s = self._startup_timeout_s + SLACK_S if timeout_s is None else timeout_s
        with self._life:
            self._life.wait_for(lambda: self._phase not in _STARTING, patience_s)
            check_started(self._name, self._phase, self._death, patience_s)

    # Requests

    def add(self, requests: Sequence[Request]) -> list[Stream]:
        """Admit all of `requests`, or none. Keep the streams: one that is dropped takes its request back.

        Raises: AdmissionFull with seconds to wait; InvalidRequest for an id in use; NotAdmitting while starting,
        draining or closed; EngineDeadError.
        """
        return self._desk.admit(requests)

    def abort(self, request_id: str) -> None:
        """End a request now, whatever its state. Unknown and ended ids are no error."""
        self._desk.abort(request_id)

    def control(self, call: Control) -> Future[object]:
        """Have a control call carried out between two ticks."""
        return self._loop.call(call)

    # Observers

    @property
    def phase(self) -> Phase:
        """Where the engine is in its life."""
        return self._phase

    @property
    def death(self) -> BaseException | None:
        """Why the engine is dead; None when it isn't."""
        return self._death

    @property
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""
        if self._executor is None:
            raise NotAdmitting("the model isn't loaded")
        return self._executor.capability

    def snapshot(self) -> Snapshot:
        """How busy it is; true also during a long tick."""
        return self._desk.snapshot()

    def progress(self, now_s: float | None = None) -> Progress:
        """How far the current tick is, for a liveness probe."""
        return self._loop.progress(self._clock() if now_s is None else now_s)

    def outstanding(self) -> Future[dict[str, int]]:
        """What is held for requests, by kind, here and in the runner; all 0 at rest. Counted between two ticks."""
        answer: Future[dict[str, int]] = Future()

        def count(runner: Future[object]) -> None:
            held = self._desk.outstanding()
            if runner.exception() is not None:
                answer.set_result(held)  # closed or dead: there is no runner left
            elif isinstance(counts := runner.result(), dict):
                answer.set_result(held | counts)
            else:
                answer.set_exception(InternalError(f"the executor counts with {counts!r}; expected a dict"))

        self._loop.call(Outstanding()).add_done_callback(count)
        return answer

    def check_health(self) -> None:
        """Look at it; look again every few tenths of a second, since only time that was watched makes a hang.

        Raises: EngineDeadError when the executor's group is unusable, or a tick hangs; the engine is dead from then
        on, and everybody who waits has been told.
        """
        if self._death is None and self._phase is not Phase.CLOSED:
            try:
                if self._executor is not None:
                    self._executor.health()
                self._check_progress()
            except EngineDeadError as error:
                self._die(error)
        if self._death is not None:
            raise as_group_death(self._death)

    def when_dead(self, callback: OnDeath) -> None:
        """Call `callback` once with the reason when the engine dies, or now if it is dead. It must not raise."""
        with self._life:
            if self._death is None:
                self._on_death.append(callback)
                return
        callback(self._death)

    # End

    def close_admission(self) -> None:
        """Admit nothing from now on; finish what is there."""
        with self._life:
            if self._phase is Phase.READY:
                self._desk.shut(lambda: NotAdmitting("the stage is draining"))
                self._move(Phase.DRAINING)

    def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there, for `patience_s` seconds. False: not everything has ended."""
        self.close_admission()
        return self._desk.wait_empty(patience_s) and self._phase is Phase.DRAINING

    def close(self, timeout_s: float = 10.0) -> None:
        """End everything: streams get an error, then scheduler and executor are closed. Idempotent.

        Raises: EngineHung when the loop is still in one tick after `timeout_s`; the executor has then been closed from
        outside, as far as it let itself be within as long again. A loop that moves on, or is through its ticks, is
        waited for: on a busy machine that takes its time.
        """

        def closed() -> StageError:
            return NotAdmitting("the engine is closed")

        with self._life:
            thread = self._thread
            if self._phase is not Phase.DEAD:
                self._end(closed, Phase.CLOSED)
        if thread is current_thread():
            return  # its own last act closes the executor
        if thread is None:
            self._close_executor()
            return
        if not self._loop.has_ended(thread, timeout_s):
            self._close_over_stuck_loop(timeout_s)

    # How

    def _main(self) -> None:
        """The loop thread."""
        try:
            self._open()
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - SystemExit here would leave every stream open
            self._die(error)
        finally:
            self._close_executor()

    def _claim(self, thread: Thread | None) -> None:
        with self._life:
            if self._phase is not Phase.CREATED:
                raise InternalError(f"{self._name} is {self._phase}: it starts once only")
            self._thread = thread
            self._loop.note_loading()
            self._move(Phase.LOADING)

    def _open(self) -> None:
        """Load, warm up, admit."""
        try:
            self._executor = self._build_executor()
            self._loop.attach(self._executor)
            self._executor.when_dead(self._die)
            if self._advance(Phase.LOADING, Phase.WARMING):
                warm_up(self._desk, self._loop, self._warmup)
        except BaseException:
            self._close_executor()  # whoever waits for the error finds everything closed
            raise
        with self._life:
            if self._advance(Phase.WARMING, Phase.READY):
                self._desk.open()

    def _die(self, error: BaseException) -> None:
        """Refuse, fail every stream and call, and say why. Only the first reason counts."""
        with self._life:
            if self._phase in (Phase.DEAD, Phase.CLOSED):
                return
            if isinstance(error, EngineDeadError | InternalError) or self._phase in _STARTING:
                self._death = error
            else:
                self._death = InternalError(words_of(error))
                self._death.__cause__ = error
            death = self._death
            callbacks, self._on_death = self._on_death, []
            self._end(lambda: as_group_death(death), Phase.DEAD)
        # The error of a model that can't be loaded, or of a hang, says all; where it was noticed says nothing more.
        trace = None if isinstance(death, ModelError | OutOfDeviceMemory | EngineHung) else death
        log.critical(
            "engine died", extra={"engine": self._name, "error": words_of(death, kind=False)}, exc_info=trace
        )
        traceback.clear_frames(error.__traceback__)  # they hold what the model was working on
        if self._executor is not None:
            self._executor.give_up(as_group_death(death))
        for callback in callbacks:
            callback(death)

    def _end(self, refusal: Refusal, phase: Phase) -> None:
        """Into a final phase: the loop ends after its tick, nobody is admitted, and nobody is left waiting."""
        self._loop.stop(refusal)
        self._move(phase)  # first, so that whoever hears of its end finds the engine ended
        self._desk.end_all(refusal(), refusal)

    def _advance(self, before: Phase, after: Phase) -> bool:
        """Move on, unless the engine was closed meanwhile."""
        with self._life:
            if self._phase is before:
                self._move(after)
            return self._phase is after

    def _move(self, phase: Phase) -> None:
        self._phase = phase
        self._life.notify_all()

    def _check_progress(self) -> None:
        """Raises: EngineHung."""
        now_s = self._clock()
        progress = self.progress(now_s)
        with self._looking:
            hangs = self._suspicion.confirmed(progress.tick, overdue=progress.overdue, now_s=now_s)
        if hangs:
            raise EngineHung(
                f"tick {progress.tick} has made no progress for {progress.elapsed_s:.1f} s; "
                f"expected within {progress.limit_s:.1f} s"
            )

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


def as_group_death(error: BaseException) -> EngineDeadError:
    """The error for those whose request dies with the engine."""
    if isinstance(error, EngineDeadError):
        return error
    return EngineDeadError(f"the engine is dead: {words_of(error, kind=True)}")


def check_started(name: str, phase: Phase, death: BaseException | None, waited_s: float) -> None:
    """Whether the start of an engine went well, wherever it lives.

    Raises: what it died of; EngineHung when it has not started yet; NotAdmitting when it was closed instead.
    """
    if phase in _STARTING:
        raise EngineHung(f"{name} is still {phase} after {waited_s:.1f} s")
    if death is not None:
        raise death
    if phase is Phase.CLOSED:
        raise NotAdmitting(f"{name} was closed before it was ready")
