"""What every engine is, wherever it lives: its surface, its phases, and an end that always comes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Lock
from typing import Final

from stage_api.startup_progress import StartProgress
from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError, NotAdmitting, StageError
from stage_runtime.core.request import Request
from stage_runtime.core.suspected_hang import SuspectedHang
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.phase import FINAL, STARTING, Phase, Progress
from stage_runtime.engine.streams import Stream
from stage_runtime.sched.base import Snapshot

OnDeath = Callable[[BaseException], None]
Refusal = Callable[[], StageError]
"""Makes the error that a refused caller gets; a new one each time."""

SLACK_S: Final = 5.0
"""Whoever waits for the start waits a little longer than it may take, so as to hear what it failed of."""

log = logging.getLogger(__name__)


class StageEngine(ABC):
    """An engine in this process, or the stand-in for one in a child. Every method may be called from any thread."""

    def __init__(self, name: str, startup_timeout_s: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._startup_timeout_s = startup_timeout_s
        self._clock = clock
        self._life = Condition()
        """Guards phase, death and callbacks; told when the phase moves. Taken before other locks."""
        self._phase = Phase.CREATED
        self._death: BaseException | None = None
        self._start_progress: StartProgress | None = None
        self._on_death: list[OnDeath] = []
        self._suspicion, self._looking = SuspectedHang(), Lock()

    # Start

    @abstractmethod
    def start(self) -> None:
        """Load, warm up, and serve, in a thread of its own. Returns at once."""

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until requests are admitted, by default for the startup timeout.

        Raises: what loading or warm-up raised; EngineHung after the timeout; NotAdmitting when it was closed.
        """
        patience_s = self._startup_timeout_s + SLACK_S if timeout_s is None else timeout_s
        with self._life:
            self._life.wait_for(lambda: self._phase not in STARTING, patience_s)
            if self._phase in STARTING:
                raise EngineHung(f"{self._name} is still {self._phase} after {patience_s:.1f} s")
            if self._death is not None:
                raise self._death
            if self._phase is Phase.CLOSED:
                raise NotAdmitting(f"{self._name} was closed before it was ready")

    @property
    def start_progress(self) -> StartProgress | None:
        """What its start is doing just now, as far as it tells; None once it is over."""
        return self._start_progress if self._phase in STARTING else None

    def note_start(self, progress: StartProgress) -> None:
        """The start is doing this now. From the thread that does it."""
        before, self._start_progress = self._start_progress, progress
        if before is None or (before.activity, before.what) != (progress.activity, progress.what):
            log.info("starting", extra={"engine": self._name, "doing": progress.text()})

    # Requests

    @abstractmethod
    def admit(self, requests: Sequence[Request]) -> Future[list[Stream]]:
        """Admit all of `requests`, or none. Keep the streams: one that is dropped takes its request back.

        Raises, at once or by the future: AdmissionFull with seconds to wait; InvalidRequest for an id in use;
        NotAdmitting while starting, draining or closed; EngineDeadError.
        """

    def add(self, requests: Sequence[Request]) -> list[Stream]:
        """The same, waiting for the answer. Not for an event loop."""
        return self.admit(requests).result()

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request, whatever its state. Unknown and ended ids are no error."""

    @abstractmethod
    def control(self, call: Control) -> Future[object]:
        """Have a control call carried out between two ticks."""

    # Observers

    @property
    def phase(self) -> Phase:
        """Where it is in its life, as far as is known here."""
        return self._phase

    @property
    def death(self) -> BaseException | None:
        """Why it is dead; None when it isn't."""
        return self._death

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""

    @abstractmethod
    def observe(self, observer: Observer) -> None:
        """Tell `observer` of waves and requests from now on; before it, nobody is told."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """How busy it is; true also during a long tick."""

    @abstractmethod
    def progress(self, now_s: float | None = None) -> Progress:
        """How far the current tick is, for a liveness probe."""

    @abstractmethod
    def outstanding(self) -> Future[dict[str, int]]:
        """What is held for requests, by kind; all 0 at rest. Counted between two ticks."""

    def check_health(self) -> None:
        """Look at it; look again every few tenths of a second, since only time that was watched makes a hang.

        Raises: EngineDeadError when a tick hangs, or its group is unusable; it is dead from then on, and everybody
        who waits has been told.
        """
        if self._phase not in FINAL:
            try:
                self._check()
            except EngineDeadError as error:
                self._die(error)
        if self._death is not None:
            raise as_group_death(self._death)

    def when_dead(self, callback: OnDeath) -> None:
        """Call `callback` once with the reason when it dies, or now if it is dead. It must not raise."""
        with self._life:
            if self._death is None:
                self._on_death.append(callback)
                return
        callback(self._death)

    # End

    @abstractmethod
    def close_admission(self) -> None:
        """Admit nothing from now on; finish what is there."""

    @abstractmethod
    def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there, for `patience_s` seconds. False: not everything has ended."""

    @abstractmethod
    def close(self, timeout_s: float = 10.0) -> None:
        """End everything: streams get an error, then what runs them is ended. Idempotent."""

    # How

    @abstractmethod
    def _refuse(self, refusal: Refusal) -> None:
        """It has ended: nobody is admitted, and nobody is left waiting."""

    @abstractmethod
    def _give_up(self, death: BaseException) -> None:
        """It is dead: end what may hang."""

    def _check(self) -> None:
        """Raises: EngineDeadError."""
        now_s = self._clock()
        progress = self.progress(now_s)
        with self._looking:
            hangs = self._suspicion.confirmed(progress.tick, overdue=progress.overdue, now_s=now_s)
        if hangs:
            raise EngineHung(
                f"tick {progress.tick} has made no progress for {progress.elapsed_s:.1f} s; "
                f"expected within {progress.limit_s:.1f} s"
            )

    def _begin(self) -> None:
        with self._life:
            if self._phase is not Phase.CREATED:
                raise InternalError(f"{self._name} is {self._phase}: it starts once only")
            self._move(Phase.LOADING)

    def _move(self, phase: Phase) -> None:
        self._phase = phase
        self._life.notify_all()

    def _end(self, phase: Phase, refusal: Refusal) -> bool:
        """Into a final phase. False when it was in one."""
        with self._life:
            if self._phase in FINAL:
                return False
            self._move(phase)  # first, so that whoever hears of its end finds the engine ended
            self._refuse(refusal)
        return True

    def _die(self, error: BaseException) -> None:
        """Refuse, fail every stream and call, and say why. Only the first reason counts."""
        with self._life:
            if self._phase in FINAL:
                return
            self._death = death = self._reason(error)
            callbacks, self._on_death = self._on_death, []
            self._end(Phase.DEAD, lambda: as_group_death(death))
        # The error of a model that can't be loaded, or of a hang, says all; where it was noticed says nothing more.
        trace = death if isinstance(death, InternalError) or not isinstance(death, StageError) else None
        log.critical("engine died", extra={"engine": self._name, "error": words_of(death)}, exc_info=trace)
        self._give_up(death)
        for callback in callbacks:
            callback(death)

    def _reason(self, error: BaseException) -> BaseException:
        """What it died of, for `error`."""
        return error


def as_group_death(error: BaseException) -> EngineDeadError:
    """The error for those whose request dies with the engine."""
    if isinstance(error, EngineDeadError):
        return error
    return EngineDeadError(f"the engine is dead: {words_of(error, kind=True)}")


def closed() -> StageError:
    """The error for those who want something of an engine that was closed."""
    return NotAdmitting("the engine is closed")
