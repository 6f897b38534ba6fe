"""An engine in a child process, over ZeroMQ. It behaves as an engine in this process does.

One thread starts the child, talks with it, and sees it end. What is asked of the engine's state is answered at once,
from what the child said last. A child that is killed, falls silent over its work, or says what can't be read is the
death of the engine: nothing is served again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Final

from msgspec import Struct

from stage_api.startup_progress import StartProgress
from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import decoded
from stage_runtime.core.errors import AdmissionFull, EngineHung, InvalidRequest, NotAdmitting, StageError
from stage_runtime.core.request import Request
from stage_runtime.engine.base import Refusal, StageEngine, closed
from stage_runtime.engine.observer import Nobody, Observer
from stage_runtime.engine.phase import FINAL, STARTING, Phase, Progress
from stage_runtime.engine.streams import Mailbox, Stream
from stage_runtime.hosting import messages
from stage_runtime.hosting.child_thread import ChildThread, Heard
from stage_runtime.hosting.last_heard import LastHeard
from stage_runtime.hosting.pending_answers import PendingAnswers
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.sched.base import Snapshot

MAX_UNANSWERED: Final = 1024  # submissions and calls on their way; past it the child isn't keeping up

_ORDER: Final = tuple(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What a child is to be. Seconds."""

    factory: str
    """`module:function`, which makes the Engine from `argument` in the child."""
    argument: bytes
    startup_timeout_s: float
    """How long it may take to be ready."""
    name: str = "engine"
    log_as: str | None = None
    """Name of the stage in the child's log; None leaves its logging as Python has it."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


class RemoteEngine(StageEngine):
    """The stand-in. Where it differs from an engine in this process: `close` raises nothing, since a process can be
    killed; an error of loading that is none of ours comes as InternalError; an observer gets outcomes without bytes.
    """

    def __init__(self, spec: ChildSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        """The child is started by `start`."""
        super().__init__(spec.name, spec.startup_timeout_s, clock)
        self._awaited = PendingAnswers(self)
        setup = messages.Setup(factory=spec.factory, argument=spec.argument, log_as=spec.log_as)
        self._child = ChildThread(setup, spec.environ, hear=self._hear, look=self._look, lost=self._note_lost)
        self._thread: Thread | None = None
        self._observer: Observer = Nobody()
        self._dropped: SimpleQueue[Mailbox] = SimpleQueue()
        """Mailboxes whose consumer was collected. NB: filled inside the garbage collector, so without a lock."""
        self._capability: Capability | None = None
        self._last = LastHeard(spec.startup_timeout_s)
        """With the child's own word on its phase, which may lag behind what was asked of it."""

    @property
    def pid(self) -> int | None:
        """Process id of the child, once it is started."""
        return self._child.pid

    def observe(self, observer: Observer) -> None:
        self._observer = observer
        self._child.send(messages.Observe())

    def start(self) -> None:
        with self._life:
            self._begin()
            # A daemon: the process may end without waiting for it, and the kernel ends the child then.
            self._thread = Thread(target=self._child.run, name=f"{self._name}-line", daemon=True)
            self._last.heard(self._clock())
            self._thread.start()

    # Requests

    def admit(self, requests: Sequence[Request]) -> Future[list[Stream]]:
        with self._life:
            if self._phase in STARTING:
                raise NotAdmitting("the stage is starting")
            if self._phase is Phase.DRAINING:
                raise NotAdmitting("the stage is draining")
        if self._awaited.unanswered >= MAX_UNANSWERED:
            raise AdmissionFull(f"{MAX_UNANSWERED} requests and calls wait for the engine's process")
        self._note_asking()
        number, admitted = self._awaited.submission(requests)
        self._ask(number, messages.Submit(number, tuple(requests)))
        return admitted

    def abort(self, request_id: str) -> None:
        self._child.send(messages.Abort(request_id))

    def control(self, call: Control) -> Future[object]:
        return self._called(call)

    def _called(self, call: Control | None) -> Future[object]:
        try:
            self._note_asking()
            number, answer = self._awaited.call(call)
        except StageError as refusal:
            answer = Future()
            answer.set_exception(refusal)
        else:
            self._ask(number, messages.Ask(number, call))
        return answer

    # Observers

    @property
    def capability(self) -> Capability:
        if self._capability is None:
            raise NotAdmitting("the model isn't loaded")
        return self._capability

    def snapshot(self) -> Snapshot:
        """How busy it was when it last said so: within the last tenth of a second."""
        with self._life:
            return self._last.emptied() if self._phase in FINAL else self._last.snapshot(self._clock())

    def progress(self, now_s: float | None = None) -> Progress:
        """How far the current tick is. Goes on counting while the child says nothing."""
        now_s = self._clock() if now_s is None else now_s
        with self._life:
            if self._phase in FINAL or self._phase is Phase.CREATED:
                return Progress(self._last.tick, 0.0, None)
            return self._last.progress(now_s, owes=self._owes)

    def outstanding(self) -> Future[dict[str, int]]:
        answer: Future[dict[str, int]] = Future()

        def add(counted: Future[object]) -> None:
            held = {"awaited": self._awaited.live}
            # Closed or dead: there is no child left.
            if counted.exception() is None and isinstance(counts := counted.result(), dict):
                held |= counts
            answer.set_result(held)

        self._called(None).add_done_callback(add)
        return answer

    # End

    def close_admission(self) -> None:
        with self._life:
            if self._phase is not Phase.READY:
                return
            self._move(Phase.DRAINING)
        self._child.send(messages.CloseAdmission())

    def drain(self, patience_s: float) -> bool:
        self.close_admission()
        with self._life:
            self._life.wait_for(lambda: self._is_drained or self._phase in FINAL, patience_s)
            return self._phase is Phase.DRAINING and self._is_drained

    def close(self, timeout_s: float = 10.0) -> None:
        """End everything: streams get an error, then the child is asked to end, and killed. Idempotent."""
        self._end(Phase.CLOSED, closed)
        thread = self._thread
        if thread is None or thread is current_thread():
            return
        self._child.stop(timeout_s)
        thread.join()

    # Who admits requests

    def take_back(self, mailbox: Mailbox) -> None:
        """End the request of this mailbox, and not one that came later under the same id."""
        taken = self._awaited.take_back(mailbox)
        if taken is not None:
            self._child.send(messages.TakeBack(taken.number, taken.request_id))

    def note_dropped(self, mailbox: Mailbox) -> None:
        """A consumer was collected: its request ends soon."""
        if mailbox.terminal is None:
            self._dropped.put(mailbox)
            self._child.wake()

    # How

    @property
    def _owes(self) -> bool:
        return self._awaited.unanswered > 0 or self._awaited.live > 0

    @property
    def _is_drained(self) -> bool:
        told = self._last.status
        drains = told is not None and told.phase is Phase.DRAINING
        return drains and self._last.at_rest and not self._awaited.has_requests

    def _ask(self, number: int, ask: Struct) -> None:
        try:
            self._child.send(ask)
        except BadMessage as bad:
            self._awaited.refuse(number, InvalidRequest(str(bad)))

    def _note_asking(self) -> None:
        if not self._owes:
            with self._life:
                self._last.asked(self._clock())

    def _hear(self, message: Heard) -> None:
        """In the child's thread: what it said."""
        with self._life:
            self._last.heard(self._clock(), message.status if isinstance(message, messages.Told) else None)
        match message:
            case messages.Told():
                self._follow(message)
            case messages.Answered():
                self._awaited.answered(message)
            case messages.Leaving(death=death):
                self._note_lost(None if death is None else decoded(death))
        with self._life:
            self._life.notify_all()

    def _follow(self, told: messages.Told) -> None:
        messages.tell_observer(self._observer, told.observed)
        if (status := told.status) is not None:
            self._capability = status.capability or self._capability
            if status.starting:
                self._start_progress = StartProgress.decode(status.starting)
            with self._life:
                # Never back: it may not know yet what was asked of it.
                if _ORDER.index(status.phase) > _ORDER.index(self._phase):
                    self._move(status.phase)
        for event in told.events:
            self._awaited.deliver(event)

    def _look(self) -> bool:
        """Take back what was dropped, and see whether the child hangs. True while it has something to do."""
        with suppress(Empty):
            while True:
                self.take_back(self._dropped.get_nowait())
        try:
            self._check()
        except EngineHung as hang:
            self._die(hang)
        return self._phase not in FINAL and (self._owes or not self._last.is_idle)

    def _note_lost(self, error: BaseException | None) -> None:
        """In the child's thread: what it ended of; None when in order."""
        if error is None:
            self._end(Phase.CLOSED, closed)
        else:
            self._die(error)

    def _refuse(self, refusal: Refusal) -> None:
        self._awaited.end_all(refusal)

    def _give_up(self, death: BaseException) -> None:
        if isinstance(death, EngineHung):
            self._child.kill()
