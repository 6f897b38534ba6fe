"""What a client in another process waits for: admissions, answers, and outcomes, by number.

Any thread may use it. It knows neither the line nor the child; consumers that go away are told to `on_dropped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import decoded
from stage_runtime.core.errors import StageError
from stage_runtime.core.outcome import Aborted, Outcome, Progressed, failed
from stage_runtime.core.request import Request
from stage_runtime.engine.streams import Mailbox, Owner, Stream
from stage_runtime.hosting.wire import Accepted, Answered, Refused, Tells, Told, answer_of


class NumberedMailbox(Mailbox):
    """A mailbox that knows its submission, so that a later request under the same id is told from it."""

    def __init__(self, number: int, request: Request) -> None:
        super().__init__(request)
        self.number = number


@dataclass(frozen=True, slots=True)
class _Submission:
    mailboxes: Sequence[NumberedMailbox]
    admitted: Future[list[Stream]]


@dataclass(frozen=True, slots=True)
class _Call:
    call: Control | None
    answer: Future[object]


class Book:
    """Open submissions, calls and mailboxes."""

    def __init__(self, owner: Owner) -> None:
        """`owner` is who takes requests back."""
        self._owner = owner
        self._lock = Lock()
        self._last_number = 0
        self._submissions: dict[int, _Submission] = {}
        self._calls: dict[int, _Call] = {}
        self._mailboxes: dict[tuple[int, str], NumberedMailbox] = {}
        self._closed: Callable[[], StageError] | None = None

    @property
    def unanswered(self) -> int:
        """Submissions and calls without an answer."""
        return len(self._submissions) + len(self._calls)

    @property
    def live(self) -> int:
        """Requests without a terminal event, as far as is known here."""
        return len(self._mailboxes)

    @property
    def is_empty(self) -> bool:
        """Nobody waits for anything but answers to calls."""
        return not self._submissions and not self._mailboxes

    def enter_submission(self, requests: Sequence[Request]) -> tuple[int, Future[list[Stream]]]:
        """Its number, and a future of its streams. Raises: the error that `end_all` set."""
        with self._lock:
            number = self._next_number()
            admitted: Future[list[Stream]] = Future()
            mailboxes = [NumberedMailbox(number, request) for request in requests]
            self._submissions[number] = _Submission(mailboxes, admitted)
        return number, admitted

    def enter_call(self, call: Control | None) -> tuple[int, Future[object]]:
        """Its number, and a future of its answer. Raises: the error that `end_all` set."""
        with self._lock:
            number = self._next_number()
            answer: Future[object] = Future()
            self._calls[number] = _Call(call, answer)
        return number, answer

    def take(self, tell: Tells) -> None:
        """What came from the child, as far as anybody here waits for it."""
        match tell:
            case Told(news=news):
                for one in news:
                    self.deliver(one.number, one.outcome)
            case Accepted(number=number):
                self.accept(number)
            case Answered(number=number, value=value):
                self.answer(number, value)
            case Refused(number=number, error=raised):
                self.refuse(number, decoded(raised))

    def accept(self, number: int) -> None:
        """A submission is admitted."""
        with self._lock:
            submission = self._submissions.pop(number, None)
            if submission is None:
                return
            for mailbox in submission.mailboxes:
                self._mailboxes[number, mailbox.request_id] = mailbox
        # Whoever gave up waiting for them drops these streams, and that takes the requests back.
        streams = [Stream(mailbox, self._owner) for mailbox in submission.mailboxes]
        if submission.admitted.set_running_or_notify_cancel():
            submission.admitted.set_result(streams)

    def answer(self, number: int, value: object) -> None:
        """A call is carried out."""
        with self._lock:
            call = self._calls.pop(number, None)
        if call is not None and call.answer.set_running_or_notify_cancel():
            call.answer.set_result(value if call.call is None else answer_of(call.call, value))

    def refuse(self, number: int, error: BaseException) -> None:
        """A submission or a call is refused."""
        with self._lock:
            submission, call = self._submissions.pop(number, None), self._calls.pop(number, None)
        future: Future[list[Stream]] | Future[object] | None = None
        if submission is not None:
            future = submission.admitted
        elif call is not None:
            future = call.answer
        if future is not None and future.set_running_or_notify_cancel():
            future.set_exception(error)

    def deliver(self, number: int, outcome: Outcome) -> None:
        """An outcome came. One of a request that is gone is dropped: its consumer has had its terminal event."""
        key = (number, outcome.request_id)
        with self._lock:
            mailbox = (
                self._mailboxes.get(key)
                if isinstance(outcome, Progressed)
                else self._mailboxes.pop(key, None)
            )
        if mailbox is not None:
            mailbox.put(outcome)

    def take_back(self, mailbox: Mailbox) -> NumberedMailbox | None:
        """End a request whose consumer is gone. None when it had ended."""
        if not isinstance(mailbox, NumberedMailbox):
            return None
        with self._lock:
            taken = self._mailboxes.pop((mailbox.number, mailbox.request_id), None)
        if taken is not None:
            taken.put(Aborted(taken.request_id))
        return taken

    def end_all(self, refusal: Callable[[], StageError]) -> None:
        """Give everybody who waits this error, and everybody who comes later."""
        with self._lock:
            self._closed = self._closed or refusal
            mailboxes = list(self._mailboxes.values())
            futures: list[Future[list[Stream]] | Future[object]] = [
                *(one.admitted for one in self._submissions.values()),
                *(one.answer for one in self._calls.values()),
            ]
            self._mailboxes.clear()
            self._submissions.clear()
            self._calls.clear()
        for mailbox in mailboxes:
            mailbox.put(failed(mailbox.request_id, refusal()))
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal())

    def _next_number(self) -> int:
        if self._closed is not None:
            raise self._closed()
        self._last_number += 1
        return self._last_number
