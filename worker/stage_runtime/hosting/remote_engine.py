"""An engine in a child process, over ZeroMQ. It behaves as an engine in this process does.

One thread starts the child, talks with it, and sees it end. What is asked of the engine's state is answered at once,
from what the child said last. A child that is killed, falls silent over its work, or says what can't be read is the
death of the engine: nothing is served again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Thread, current_thread
from typing import Final

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import Raised, decoded
from stage_runtime.core.errors import (
    AdmissionFull,
    EngineDeadError,
    EngineHung,
    InternalError,
    InvalidRequest,
    NotAdmitting,
    StageError,
)
from stage_runtime.core.request import Request
from stage_runtime.core.suspicion import Suspicion
from stage_runtime.engine.engine import SLACK_S, OnDeath, as_group_death, check_started
from stage_runtime.engine.observer import Nobody, Observer
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.engine.streams import Mailbox, Stream
from stage_runtime.hosting.book import Book
from stage_runtime.hosting.child import ChildSpec, death_of
from stage_runtime.hosting.pulse import Pulse
from stage_runtime.hosting.tender import Tender
from stage_runtime.hosting.wire import (
    Abort,
    Ask,
    Asks,
    CloseAdmission,
    Count,
    Leaving,
    Loaded,
    Observe,
    Observed,
    Setup,
    Status,
    Submit,
    TakeBack,
    Tells,
    encode,
    tell_observer,
)
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.sched.base import Snapshot

MAX_UNANSWERED: Final = 1024  # submissions and calls on their way; past it the child isn't keeping up
CLOSE_S: Final = 10.0

_STARTING: Final = (Phase.CREATED, Phase.LOADING, Phase.WARMING)
_FINAL: Final = (Phase.CLOSED, Phase.DEAD)
_ORDER: Final = tuple(Phase)

log = logging.getLogger(__name__)


class RemoteEngine:
    """An engine in a child process, with the methods of `engine.engine.Engine`. Any thread may call them.

    Where it differs: `close` raises nothing, since a process can be killed; an error of loading that is none of ours
    comes as InternalError; an observer gets outcomes without their bytes.
    """

    def __init__(self, spec: ChildSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        """The child is started by `start`."""
        self._startup_timeout_s = spec.startup_timeout_s
        self._name = spec.name
        self._clock = clock
        self._book = Book(self)
        self._tender = Tender(
            Setup(
                factory=spec.factory,
                argument=spec.argument,
                log_as=spec.log_as,
                grace_s=spec.grace_s,
            ),
            spec.environ,
            hear=self._hear,
            look=self._look,
            lost=self._note_lost,
        )
        self._thread: Thread | None = None
        self._observer: Observer = Nobody()
        self._dropped: SimpleQueue[Mailbox] = SimpleQueue()
        """Mailboxes whose consumer was collected. NB: filled inside the garbage collector, so without a lock."""
        self._suspicion = Suspicion()
        self._life = Condition()
        """Guards what follows; told when the phase moves, a status came, or a request ended while it drains."""
        self._phase = Phase.CREATED
        self._death: BaseException | None = None
        self._on_death: list[OnDeath] = []
        self._capability: Capability | None = None
        self._pulse = Pulse(spec.startup_timeout_s)
        self._told_phase = Phase.CREATED
        """The child's own word, which may lag behind what was asked of it."""

    @property
    def pid(self) -> int | None:
        """Process id of the child, once it is started."""
        return self._tender.pid

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of waves and requests from now on; before it, nobody is told."""
        self._observer = observer
        self._send(Observe())

    # Start

    def start(self) -> None:
        """Start the child: it loads the model, warms up, and serves. Returns at once."""
        with self._life:
            if self._phase is not Phase.CREATED:
                raise InternalError(f"{self._name} is {self._phase}: it starts once only")
            # A daemon: the process may end without waiting for it, and the kernel ends the child then.
            self._thread = Thread(target=self._tender.run, name=f"{self._name}-line", daemon=True)
            self._pulse.heard(self._clock())
            self._move(Phase.LOADING)
            self._thread.start()

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
        """Admit all of `requests`, or none, and wait for the child's word. Not for an event loop: see `admit`."""
        return self.admit(requests).result()

    def admit(self, requests: Sequence[Request]) -> Future[list[Stream]]:
        """Ask for it. The future gives the streams, or raises as `Engine.add` does.

        Raises: what is known here without asking, such as that it is starting, draining or dead.
        """
        with self._life:
            if self._phase in _STARTING:
                raise NotAdmitting("the stage is starting")
            if self._phase is Phase.DRAINING:
                raise NotAdmitting("the stage is draining")
        if self._book.unanswered >= MAX_UNANSWERED:
            raise AdmissionFull(f"{MAX_UNANSWERED} requests and calls wait for the engine's process")
        self._note_asking()
        number, admitted = self._book.enter_submission(requests)
        try:
            self._send(Submit(number, tuple(requests)))
        except BadMessage as bad:
            self._book.refuse(number, InvalidRequest(str(bad)))
        return admitted

    def abort(self, request_id: str) -> None:
        """End a request soon, whatever its state. Unknown and ended ids are no error."""
        self._send(Abort(request_id))

    def control(self, call: Control) -> Future[object]:
        """Have a control call carried out between two ticks."""
        try:
            self._note_asking()
            number, answer = self._book.enter_call(call)
        except StageError as refusal:
            answer = Future()
            answer.set_exception(refusal)
            return answer
        try:
            self._send(Ask(number, call))
        except BadMessage as bad:
            self._book.refuse(number, InvalidRequest(str(bad)))
        return answer

    # Observers

    @property
    def phase(self) -> Phase:
        """Where the engine is in its life, as far as it is known."""
        return self._phase

    @property
    def death(self) -> BaseException | None:
        """Why the engine is dead; None when it isn't."""
        return self._death

    @property
    def capability(self) -> Capability:
        """What the loaded model can do. Raises: NotAdmitting while it isn't loaded."""
        if self._capability is None:
            raise NotAdmitting("the model isn't loaded")
        return self._capability

    def snapshot(self) -> Snapshot:
        """How busy it was when it last said so: within the last tenth of a second."""
        with self._life:
            return self._pulse.emptied() if self._phase in _FINAL else self._pulse.snapshot(self._clock())

    def progress(self, now_s: float | None = None) -> Progress:
        """How far the current tick is. Goes on counting while the child says nothing."""
        now_s = self._clock() if now_s is None else now_s
        with self._life:
            if self._phase in _FINAL or self._phase is Phase.CREATED:
                status = self._pulse.status
                return Progress(0 if status is None else status.progress.tick, 0.0, None)
            return self._pulse.progress(now_s, owes=self._owes)

    def outstanding(self) -> Future[dict[str, int]]:
        """What is held for requests, by kind, in both processes; all 0 at rest."""
        answer: Future[dict[str, int]] = Future()

        def add(counted: Future[object]) -> None:
            held = {"awaited": self._book.live}
            if counted.exception() is None and isinstance(counts := counted.result(), dict):
                held |= counts
            answer.set_result(held)

        try:
            self._note_asking()
            number, counted = self._book.enter_call(None)
        except StageError:
            answer.set_result({"awaited": self._book.live})  # closed or dead: there is no child left
            return answer
        counted.add_done_callback(add)
        self._send(Count(number))
        return answer

    def check_health(self) -> None:
        """Look at it, as `Engine.check_health`. Raises: EngineDeadError."""
        self._look()
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
            if self._phase is not Phase.READY:
                return
            self._move(Phase.DRAINING)
        self._send(CloseAdmission())

    def drain(self, patience_s: float) -> bool:
        """Close admission and wait for what is there, for `patience_s` seconds. False: not everything has ended."""
        self.close_admission()
        with self._life:
            self._life.wait_for(lambda: self._is_drained or self._phase in _FINAL, patience_s)
            return self._phase is Phase.DRAINING and self._is_drained

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End everything: streams get an error, then the child is asked to end, terminated, killed. Idempotent."""
        self._end(Phase.CLOSED, lambda: NotAdmitting("the engine is closed"))
        thread = self._thread
        if thread is None or thread is current_thread():
            return
        self._tender.stop(timeout_s)
        thread.join()

    # Owner of the mailboxes

    def take_back(self, mailbox: Mailbox) -> None:
        """End the request of this mailbox, and not one that came later under the same id."""
        taken = self._book.take_back(mailbox)
        if taken is not None:
            self._send(TakeBack(taken.number, taken.request_id))

    def note_dropped(self, mailbox: Mailbox) -> None:
        """A consumer was collected: its request ends soon."""
        if mailbox.terminal is None:
            self._dropped.put(mailbox)
            self._tender.wake()

    # How

    @property
    def _owes(self) -> bool:
        return self._book.unanswered > 0 or self._book.live > 0

    @property
    def _is_drained(self) -> bool:
        return self._told_phase is Phase.DRAINING and self._pulse.at_rest and self._book.is_empty

    def _send(self, ask: Asks) -> None:
        """Raises: BadMessage."""
        self._tender.send(encode(ask))

    def _note_asking(self) -> None:
        if not self._owes:
            with self._life:
                self._pulse.asked(self._clock())

    def _hear(self, tell: Tells) -> None:
        """In the tender's thread: what the child said."""
        with self._life:
            self._pulse.heard(self._clock(), tell if isinstance(tell, Status) else None)
        match tell:
            case Status(phase=phase):
                self._follow(phase)
            case Observed(events=events):
                tell_observer(self._observer, events)
            case Loaded(capability=capability):
                self._capability = capability
            case Leaving(death=None):
                self._end(Phase.CLOSED, lambda: NotAdmitting("the engine is closed"))
            case Leaving(death=Raised() as raised):
                self._die(decoded(raised))
            case _:
                self._book.take(tell)
                if self._phase is Phase.DRAINING:
                    with self._life:
                        self._life.notify_all()

    def _follow(self, phase: Phase) -> None:
        """The child's phase. Never back: it may not know yet what was asked of it."""
        with self._life:
            self._told_phase = phase
            if _ORDER.index(phase) > _ORDER.index(self._phase):
                self._move(phase)
            else:
                self._life.notify_all()

    def _look(self) -> bool:
        """Take back what was dropped, and see whether the child hangs. True while it has something to do."""
        with suppress(Empty):
            while True:
                self.take_back(self._dropped.get_nowait())
        now_s = self._clock()
        progress = self.progress(now_s)
        with self._life:
            hangs = self._suspicion.confirmed(progress.tick, overdue=progress.overdue, now_s=now_s)
        if hangs:
            what = f"the engine's process has made no progress in tick {progress.tick}"
            for_s = f"for {progress.elapsed_s:.1f} s; expected within {progress.limit_s:.1f} s"
            self._die(EngineHung(f"{what} {for_s}"))
            self._tender.kill()
        return self._phase not in _FINAL and (self._owes or not self._pulse.is_idle)

    def _note_lost(self, how: EngineDeadError | InternalError | int) -> None:
        """In the tender's thread, in the end: the child's return code, or why there is none to go by."""
        if how == 0:
            self._end(Phase.CLOSED, lambda: NotAdmitting("the engine is closed"))
        elif isinstance(how, int):
            self._die(death_of(how))
        else:
            self._die(how)

    def _die(self, error: BaseException) -> None:
        """Refuse, fail every stream and call, and say why. Only the first reason counts."""
        with self._life:
            if self._phase in _FINAL:
                return
            self._death = error
            self._move(Phase.DEAD)
            callbacks, self._on_death = self._on_death, []
        self._book.end_all(lambda: as_group_death(error))
        log.critical("engine died", extra={"engine": self._name, "error": str(error)})
        for callback in callbacks:
            callback(error)

    def _end(self, phase: Phase, refusal: Callable[[], StageError]) -> None:
        with self._life:
            if self._phase in _FINAL:
                return
            self._move(phase)
        self._book.end_all(refusal)

    def _move(self, phase: Phase) -> None:
        self._phase = phase
        self._life.notify_all()
