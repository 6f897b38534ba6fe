"""The child's side of the line: carries out what the client asks, and tells what becomes of it.

It never waits for the engine. While the client doesn't read, outcomes stay in their streams, where a later progress
takes the place of an earlier one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from stage_runtime.core.error_codec import encoded
from stage_runtime.core.errors import EngineDeadError, RequestFailed, StageError
from stage_runtime.core.outcome import Completed, Outcome, Output, Progressed, Terminal
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase
from stage_runtime.engine.streams import Stream
from stage_runtime.hosting.line import Line
from stage_runtime.hosting.wire import (
    Abort,
    Accepted,
    Answered,
    Ask,
    Asks,
    CloseAdmission,
    Count,
    Ended,
    Leaving,
    Loaded,
    News,
    Observe,
    Observed,
    Refused,
    Setup,
    Started,
    Status,
    Stop,
    Submit,
    TakeBack,
    Tells,
    Told,
    Waved,
    decode_ask,
    encode,
    without_bytes,
)
from stage_runtime.ipc.codec import BadMessage, detach
from stage_runtime.ipc.messages import Parcel
from stage_runtime.ipc.shm import Sender, ShmFull

BUSY_LOOK_S: Final = 0.05  # between two looks at an engine that works
IDLE_LOOK_S: Final = 0.2  # at one that rests: whether it still could work
STATUS_S: Final = 0.1  # between two statuses while nothing but time passes
MESSAGE_BYTES: Final = 1 << 20  # about what one message carries

_STARTING: Final = frozenset({Phase.CREATED, Phase.LOADING, Phase.WARMING})
_FINAL: Final = frozenset({Phase.CLOSED, Phase.DEAD})

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[int, str]
"""Number of the submission, id of the request."""


class Service:
    """Serves one client. One thread uses it."""

    def __init__(self, line: Line, engine: Engine, sender: Sender) -> None:
        """`sender` takes large outputs."""
        self._line = line
        self._engine = engine
        self._sender = sender
        self._streams: dict[Key, Stream] = {}
        self._news: SimpleQueue[Key] = SimpleQueue()
        """Streams with outcomes; filled by the engine's thread."""
        self._answers: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()
        """Calls that are carried out; filled by the engine's thread."""
        self._open_calls = 0
        self._recorder = Recorder()
        self._told_capability = False
        self._status: Status | None = None
        self._status_s = 0.0
        self._stop: Stop | None = None

    @property
    def starting(self) -> bool:
        """The engine isn't ready yet."""
        return self._engine.phase in _STARTING

    @property
    def at_rest(self) -> bool:
        """All requests have ended, and their ends are told."""
        return not self._streams and self._engine.drain(0.0)

    def turn(self) -> bool:
        """Wait for something to do and do it. True when the engine has ended, or is to end."""
        wait_s = BUSY_LOOK_S if self._is_busy() else IDLE_LOOK_S
        self.take(self._line.receive(wait_s))
        with suppress(EngineDeadError):  # `finish` tells it
            self._engine.check_health()
        self._tell()
        return self._stop is not None or self._engine.phase in _FINAL

    def take(self, messages: Sequence[bytes]) -> None:
        """Do what they ask. Raises: BadMessage: then who sent them can't be understood, nor served."""
        for data in messages:
            self._do(decode_ask(data))

    def finish(self, patience_s: float) -> None:
        """End what runs, tell every outcome, and say the last words, all within about `patience_s`."""
        if self._stop is not None:
            patience_s = self._stop.patience_s
        until_s = time.monotonic() + patience_s
        if self._engine.phase not in _FINAL and not self.starting:
            with suppress(EngineDeadError):  # it hangs; its streams have ended all the same
                self._engine.close(patience_s / 2)
        while time.monotonic() < until_s:
            self._tell()
            if not self._streams and self._line.has_room:
                break
            self.take(self._line.receive(BUSY_LOOK_S))
        death = self._engine.death
        self._line.send(encode(Leaving(None if death is None else encoded(death))))

    # What is asked

    def _do(self, ask: Asks) -> None:
        match ask:
            case Submit():
                self._admit(ask)
            case TakeBack():
                self._take_back(ask)
            case Abort(request_id=request_id):
                self._engine.abort(request_id)
            case Ask(number=number, call=call):
                self._answer_later(number, self._engine.control(call))
            case Count(number=number):
                self._answer_later(number, self._engine.outstanding())
            case Observe():
                self._engine.observe(self._recorder)
            case CloseAdmission():
                self._engine.close_admission()
            case Stop():
                self._stop = ask
            case Setup():
                raise BadMessage("a second setup came")

    def _admit(self, submit: Submit) -> None:
        try:
            streams = self._engine.add(submit.requests)
        except StageError as error:
            self._send(Refused(submit.number, encoded(error)))
            return
        self._tell_status()
        self._send(Accepted(submit.number))
        for stream in streams:
            key = (submit.number, stream.request_id)
            self._streams[key] = stream
            # NB: bound to no stream: one that holds itself is never collected.
            stream.subscribe(partial(_note, self._news, key, self._line.bell.ring))

    def _take_back(self, gone: TakeBack) -> None:
        stream = self._streams.pop((gone.number, gone.request_id), None)
        if stream is not None:
            stream.close()

    def _answer_later(self, number: int, answer: Future[Any]) -> None:
        def note(done: Future[Any]) -> None:
            self._answers.put((number, done))
            self._line.bell.ring()

        self._open_calls += 1
        answer.add_done_callback(note)

    # What is told

    def _tell(self) -> None:
        self._tell_capability()
        self._tell_answers()
        while self._line.has_room and (news := self._take_news()):
            # Before the outcomes themselves: whoever hears of an end finds it counted.
            self._tell_observed()
            self._tell_status()
            self._send(Told(tuple(news)))
        self._tell_observed()
        self._tell_status()

    def _tell_capability(self) -> None:
        if self._told_capability or self._engine.phase not in (Phase.WARMING, Phase.READY):
            return
        self._told_capability = True
        self._send(Loaded(self._engine.capability))

    def _tell_answers(self) -> None:
        while (answered := _next(self._answers)) is not None:
            number, done = answered
            self._open_calls -= 1
            error = done.exception()
            if error is not None:
                self._send(Refused(number, encoded(error)))
                continue
            try:
                data = encode(Answered(number, done.result()))
            except BadMessage as bad:
                data = encode(Refused(number, encoded(RequestFailed(str(bad)))))
            self._line.send(data)

    def _take_news(self) -> list[News]:
        """Outcomes for one message."""
        news: list[News] = []
        size = 0
        while size < MESSAGE_BYTES and (key := _next(self._news)) is not None:
            stream = self._streams.get(key)
            while stream is not None and (outcome := stream.take()) is not None:
                light, parcel = self._detached(outcome)
                news.append(News(key[0], light, parcel))
                size += _bytes_of(light)
                if not isinstance(outcome, Progressed):
                    del self._streams[key]
        return news

    def _detached(self, outcome: Outcome) -> tuple[Outcome, Parcel | None]:
        """Large bytes go into shared memory; where it is full, into the message."""
        try:
            return detach(outcome, self._sender.place)
        except (ShmFull, OSError) as error:
            log.warning("no shared memory for an output", extra={"error": str(error)})
            return outcome, None

    def _tell_observed(self) -> None:
        if events := self._recorder.taken():
            self._send(Observed(events))

    def _tell_status(self) -> None:
        """At once when anything changed, now and then while it works; not while nobody reads: the next one tells."""
        if not self._line.has_room:
            return
        status = Status(self._engine.phase, self._engine.progress(), self._engine.snapshot())
        now_s = time.monotonic()
        before, age_s = self._status, now_s - self._status_s
        if (
            before is not None
            and _gist(before) == _gist(status)
            and not (self._is_busy() and age_s >= STATUS_S)
        ):
            return
        if status.phase in _FINAL:
            return  # the last words tell how
        self._status, self._status_s = status, now_s
        self._send(status)

    def _is_busy(self) -> bool:
        """Somebody waits for something. Then silence would be a sign that this process hangs."""
        status = self._status
        if status is None or status.progress.limit_s is not None:
            return True
        return bool(self._streams or self._open_calls or status.load.untold)

    def _send(self, tell: Tells) -> None:
        self._line.send(encode(tell))


class Recorder:
    """Observes an engine for somebody in another process. Any thread."""

    def __init__(self) -> None:
        self._events: deque[Started | Waved | Ended] = deque()

    def taken(self) -> tuple[Started | Waved | Ended, ...]:
        """What has been observed since the last time."""
        return tuple(self._events.popleft() for _ in range(len(self._events)))

    def on_started(self, queue_s: float) -> None:
        """A request entered its first wave."""
        self._events.append(Started(queue_s))

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        """Requests were advanced."""
        self._events.append(Waved(size, steps, seconds))

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        """A request ended."""
        self._events.append(Ended(without_bytes(outcome), seconds))


def _note(news: SimpleQueue[Key], key: Key, ring: Callable[[], None]) -> None:
    news.put(key)
    ring()


def _next(queue: SimpleQueue[T]) -> T | None:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _gist(status: Status) -> tuple[object, ...]:
    """What of a status a client is told at once when it changes."""
    load = status.load
    return (
        status.phase,
        status.progress.limit_s is None,
        load.waiting,
        load.running,
        load.live,
        load.untold,
        load.materialising,
    )


def _bytes_of(outcome: Outcome) -> int:
    match outcome:
        case Completed(output=output) | Progressed(preview=Output() as output):
            return len(output.data)
    return 0
