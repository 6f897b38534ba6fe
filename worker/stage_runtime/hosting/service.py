"""The child's side: carries out what the client asks, and tells what becomes of it.

It never waits for the engine. While the client doesn't read, outcomes stay in their streams, where a later progress
takes the place of an earlier one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from stage_runtime.core.error_codec import encoded
from stage_runtime.core.errors import EngineDeadError, NotAdmitting, RequestFailed, StageError
from stage_runtime.core.outcome import Outcome, Progressed, Terminal
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.observer import Observer
from stage_runtime.engine.phase import FINAL, STARTING
from stage_runtime.engine.streams import Stream
from stage_runtime.hosting import messages
from stage_runtime.ipc.codec import BadMessage, detach, output_of
from stage_runtime.ipc.messages import Parcel
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender, ShmFull
from stage_runtime.processes.wakeup import Wakeup

BUSY_LOOK_S: Final = 0.05  # between two looks at an engine that works
IDLE_LOOK_S: Final = 0.2  # at one that rests: whether it still could work
STATUS_S: Final = 0.1  # between two statuses while nothing but time passes
MESSAGE_BYTES: Final = 1 << 20  # about what one message carries

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[int, str]
"""Number of the submission, id of the request."""


class Service:
    """Serves one client. One thread uses it."""

    def __init__(self, channel: RankChannel, engine: Engine, sender: Sender) -> None:
        """`sender` takes large outputs."""
        self._channel = channel
        self._engine = engine
        self._sender = sender
        self._wakeup = Wakeup()
        channel.watch(self._wakeup.fd)
        engine.when_dead(lambda _: self._wakeup.ring())
        self._streams: dict[Key, Stream] = {}
        self._arrived: SimpleQueue[Key] = SimpleQueue()
        """Streams with outcomes; filled by the engine's thread."""
        self._answers: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()
        """Calls that are carried out; filled by the engine's thread."""
        self._open_calls = 0
        self._recorder = Recorder()
        self._status: messages.Status | None = None
        self._status_s = 0.0
        self._stop: messages.Stop | None = None

    @property
    def starting(self) -> bool:
        """The engine isn't ready yet."""
        return self._engine.phase in STARTING

    def turn(self) -> bool:
        """Wait for something to do and do it. True when the engine has ended, or is to end.

        Raises: BadMessage: then who sent it can't be understood, nor served.
        """
        self._take(BUSY_LOOK_S if self._is_busy() else IDLE_LOOK_S)
        with suppress(EngineDeadError):  # `finish` tells it
            self._engine.check_health()
        self._tell()
        return self._stop is not None or self._engine.phase in FINAL

    def finish(self, patience_s: float) -> None:
        """End what runs, tell every outcome, and say the last words, all within about `patience_s`."""
        if self._stop is not None:
            patience_s = self._stop.patience_s
        until_s = time.monotonic() + patience_s
        if self._engine.phase not in FINAL and not self.starting:
            with suppress(EngineDeadError):  # it hangs; its streams have ended all the same
                self._engine.close(patience_s / 2)
        while time.monotonic() < until_s:
            self._tell()
            if not self._streams and self._channel.has_room:
                break
            self._take(BUSY_LOOK_S)
        death = self._engine.death
        if self._channel.has_room:
            self._channel.send(messages.Leaving(None if death is None else encoded(death)))

    # What is asked

    def _take(self, timeout_s: float) -> None:
        ask = self._channel.receive(timeout_s)
        self._wakeup.silence()
        while ask is not None:
            self._do(ask)
            ask = self._channel.receive(0.0) if self._channel.pending() else None

    def _do(self, ask: messages.Asks) -> None:
        match ask:
            case messages.Submit():
                self._admit(ask)
            case messages.TakeBack(number=number, request_id=request_id):
                if (stream := self._streams.pop((number, request_id), None)) is not None:
                    stream.close()
            case messages.Abort(request_id=request_id):
                self._engine.abort(request_id)
            case messages.Ask(number=number, call=call):
                engine = self._engine
                self._answer_later(number, engine.outstanding() if call is None else engine.control(call))
            case messages.Observe():
                self._engine.observe(self._recorder)
            case messages.CloseAdmission():
                self._engine.close_admission()
            case messages.Stop():
                self._stop = ask
            case messages.Setup():
                raise BadMessage("a second setup came")

    def _admit(self, submit: messages.Submit) -> None:
        try:
            streams = self._engine.add(submit.requests)
        except StageError as error:
            self._channel.send(messages.Answered(submit.number, error=encoded(error)))
            return
        self._channel.send(messages.Told(status=self._due_status()))
        self._channel.send(messages.Answered(submit.number))
        for stream in streams:
            key = (submit.number, stream.request_id)
            self._streams[key] = stream
            # NB: bound to no stream: one that holds itself is never collected.
            stream.subscribe(partial(_note, self._arrived, key, self._wakeup.ring))

    def _answer_later(self, number: int, answer: Future[Any]) -> None:
        def note(done: Future[Any]) -> None:
            self._answers.put((number, done))
            self._wakeup.ring()

        self._open_calls += 1
        answer.add_done_callback(note)

    # What is told

    def _tell(self) -> None:
        self._tell_answers()
        while self._channel.has_room:
            events = self._take_events()
            told = messages.Told(observed=self._recorder.taken(), status=self._due_status(), events=events)
            if told != messages.Told():
                self._channel.send(told)
            if not events:
                return

    def _tell_answers(self) -> None:
        while (answered := _next(self._answers)) is not None:
            number, done = answered
            self._open_calls -= 1
            error = done.exception()
            try:
                answer = None if error else done.result()
                self._channel.send(messages.Answered(number, answer, encoded(error) if error else None))
            except BadMessage as bad:
                self._channel.send(messages.Answered(number, error=encoded(RequestFailed(str(bad)))))

    def _take_events(self) -> tuple[messages.Event, ...]:
        """Outcomes for one message."""
        events: list[messages.Event] = []
        size = 0
        while size < MESSAGE_BYTES and (key := _next(self._arrived)) is not None:
            stream = self._streams.get(key)
            while stream is not None and (outcome := stream.take()) is not None:
                light, parcel = self._detached(outcome)
                events.append(messages.Event(key[0], light, parcel))
                size += len(carried.data) if (carried := output_of(light)) is not None else 0
                if not isinstance(outcome, Progressed):
                    del self._streams[key]
        return tuple(events)

    def _detached(self, outcome: Outcome) -> tuple[Outcome, Parcel | None]:
        """Large bytes go into shared memory; where it is full, into the message."""
        try:
            return detach(outcome, self._sender.place)
        except (ShmFull, OSError) as error:
            log.warning("no shared memory for an output", extra={"error": str(error)})
            return outcome, None

    def _due_status(self) -> messages.Status | None:
        """At once when anything changed, now and then while it works. In a final phase the last words tell how."""
        engine = self._engine
        capability = None
        if not self.starting or (self._status is not None and self._status.capability is None):
            with suppress(NotAdmitting):
                capability = engine.capability
        doing = engine.start_progress
        starting = "" if doing is None else doing.encode()
        status = messages.Status(engine.phase, engine.progress(), engine.snapshot(), capability, starting)
        now_s = time.monotonic()
        before, due = self._status, self._is_busy() and now_s - self._status_s >= STATUS_S
        if status.phase in FINAL or (before is not None and _gist(before) == _gist(status) and not due):
            return None
        self._status, self._status_s = status, now_s
        return status

    def _is_busy(self) -> bool:
        """Somebody waits for something. Then silence would be a sign that this process hangs."""
        status = self._status
        if status is None or status.progress.limit_s is not None:
            return True
        return bool(self._streams or self._open_calls or status.load.untold)


class Recorder(Observer):
    """Observes an engine for somebody in another process. Any thread."""

    def __init__(self) -> None:
        self._observed: deque[messages.Observed] = deque()

    def taken(self) -> tuple[messages.Observed, ...]:
        """What has been observed since the last time."""
        return tuple(self._observed.popleft() for _ in range(len(self._observed)))

    def on_started(self, queue_s: float) -> None:
        self._observed.append(messages.Started(queue_s))

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        self._observed.append(messages.Waved(size, steps, seconds))

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        self._observed.append(messages.Ended(messages.without_bytes(outcome), seconds))


def _note(arrived: SimpleQueue[Key], key: Key, ring: Callable[[], None]) -> None:
    arrived.put(key)
    ring()


def _next(queue: SimpleQueue[T]) -> T | None:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _gist(status: messages.Status) -> tuple[object, ...]:
    """What of a status a client is told at once when it changes."""
    load = status.load
    counts = (load.waiting, load.running, load.live, load.untold, load.materialising)
    return status.phase, status.progress.limit_s is None, status.capability is None, status.starting, counts
