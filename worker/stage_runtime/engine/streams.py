"""One stream per request: outcomes go in from the engine, and come out in a consumer's thread or event loop.

The engine holds a stream's `Mailbox`, the consumer holds the `Stream`. So a consumer that goes away, by `close()` or
by being garbage-collected, is noticed, and its request is taken back.

Upholds: DIFF-RUNTIME-INV-003 (no output outlives its consumer).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition, RLock
from types import TracebackType
from typing import Protocol, Self

import msgspec

from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Progressed, Terminal, as_error
from stage_runtime.core.request import Request


class Admitter(Protocol):
    """Who admitted requests, and ends those whose consumer is gone."""

    def take_back(self, mailbox: Mailbox) -> None:
        """End the mailbox's request now."""

    def note_dropped(self, mailbox: Mailbox) -> None:
        """End the mailbox's request soon. Runs inside the garbage collector: takes no lock, raises nothing."""


class Mailbox:
    """The engine's end of a stream: a bounded buffer. Any thread may use it.

    Progress that nobody has read is replaced by later progress. Previews are kept, up to the number that was asked
    for, and so are chunks, of which a step makes one at most. The terminal event always is, and nothing is taken after
    it.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.request_id = request.request_id
        self.terminal: Terminal | None = None
        self._pending: deque[Outcome] = deque()
        self._previews_left = len(request.preview_steps)
        lock = RLock()
        self._changed = Condition(lock)
        self._ended = Condition(lock)
        """Who waits for the end alone isn't woken at each step."""
        self._notify: Callable[[], None] | None = None

    def put(self, outcome: Outcome) -> None:
        """Add an outcome and wake the consumer."""
        with self._changed:
            if self.terminal is not None:
                return
            if isinstance(outcome, Progressed):
                self._put_progress(outcome)
            else:
                self.terminal = outcome
                self._pending.append(outcome)
                self._ended.notify_all()
            self._changed.notify_all()
            notify = self._notify
        if notify is not None:
            notify()

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Call `notify` after each outcome, and now if there is one already."""
        with self._changed:
            self._notify = notify
            waiting = bool(self._pending)
        if waiting:
            notify()

    def take(self) -> Outcome | None:
        """The next outcome; None when there is none at the moment."""
        with self._changed:
            return self._pending.popleft() if self._pending else None

    def wait(self) -> Outcome | None:
        """The next outcome, once there is one; None after the terminal one."""
        with self._changed:
            # The engine ends this wait: also its death and its close put a terminal event.
            self._changed.wait_for(lambda: self._pending or self.terminal is not None)
            return self._pending.popleft() if self._pending else None

    def wait_end(self, timeout_s: float | None) -> Terminal:
        """The terminal event, once it is there. Raises: TimeoutError after `timeout_s` seconds."""
        with self._ended:
            self._ended.wait_for(lambda: self.terminal is not None, timeout_s)
            if self.terminal is None:
                raise TimeoutError(f"request {self.request_id} is not done after {timeout_s} s")
            return self.terminal

    def forget(self) -> None:
        """Let go of what nobody will read."""
        with self._changed:
            self._pending.clear()
            self._notify = None

    def _put_progress(self, progress: Progressed) -> None:
        if progress.chunk:
            self._pending.append(progress)
            return
        if progress.preview is not None:
            if self._previews_left > 0:
                self._previews_left -= 1
                self._pending.append(progress)
                return
            progress = msgspec.structs.replace(progress, preview=None, preview_index=None)
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Progressed) and last.preview is None:
            self._pending.pop()
        self._pending.append(progress)


class Stream:
    """The consumer's end: progress as it comes, then exactly one terminal event.

    Iterate over it in a thread, ask for `result`, or `subscribe` and `take` from an event loop.
    """

    def __init__(self, mailbox: Mailbox, admitter: Admitter) -> None:
        self._mailbox = mailbox
        self._admitter = admitter
        # NB: the callback must not reach this object, or it would never be collected.
        weakref.finalize(self, admitter.note_dropped, mailbox).atexit = False

    @property
    def request_id(self) -> str:
        """Whose outcomes these are."""
        return self._mailbox.request_id

    @property
    def ended(self) -> bool:
        """True once the terminal event is there, read or not."""
        return self._mailbox.terminal is not None

    def __iter__(self) -> Iterator[Outcome]:
        """Outcomes until the terminal one, waiting for each."""
        while (outcome := self._mailbox.wait()) is not None:
            yield outcome

    def take(self) -> Outcome | None:
        """The next outcome; None when there is none at the moment."""
        return self._mailbox.take()

    def result(self, timeout_s: float | None = None) -> Completed:
        """The finished output, once it is there.

        Raises: the typed error with which the request failed; RequestAborted; TimeoutError after `timeout_s` seconds.
        """
        match self._mailbox.wait_end(timeout_s):
            case Completed() as completed:
                return completed
            case (Failed() | Aborted()) as ended:
                raise as_error(ended)

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Have `notify` called after each outcome, in the engine's thread: it must be quick, and must not raise.

        NB: it must not hold on to this stream either, or a consumer that goes away is never noticed.
        """
        self._mailbox.subscribe(notify)

    def close(self) -> None:
        """Take the request back, unless it has ended, and let go of what wasn't read. Idempotent."""
        self._admitter.take_back(self._mailbox)
        self._mailbox.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
