"""What a client in another process waits for, by number: answers, and outcomes of requests.

Any thread may use it. It knows neither the connection nor the child.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

from stage_runtime.core.control import Control
from stage_runtime.core.error_codec import decoded
from stage_runtime.core.outcome import Aborted, Progressed, failed
from stage_runtime.core.request import Request
from stage_runtime.engine.base import Refusal
from stage_runtime.engine.streams import Admitter, Mailbox, Stream
from stage_runtime.hosting.messages import Answered, Event, answer_of


class NumberedMailbox(Mailbox):
    """A mailbox that knows its submission, so that a later request under the same id is told from it."""

    def __init__(self, number: int, request: Request) -> None:
        super().__init__(request)
        self.number = number


@dataclass(frozen=True, slots=True)
class _Asked:
    """`mailboxes`: of a submission. `call`: of anything else, None for a count."""

    answer: Future[Any]
    mailboxes: Sequence[NumberedMailbox] | None = None
    call: Control | None = None


class PendingAnswers:
    """Who waits for what. After `end_all` everybody gets its error, also who comes later."""

    def __init__(self, admitter: Admitter) -> None:
        self._admitter = admitter
        self._lock = Lock()
        self._last_number = 0
        self._asked: dict[int, _Asked] = {}
        self._mailboxes: dict[tuple[int, str], NumberedMailbox] = {}
        self._closed: Refusal | None = None

    @property
    def unanswered(self) -> int:
        """Submissions and calls without an answer."""
        return len(self._asked)

    @property
    def live(self) -> int:
        """Requests without a terminal event, as far as is known here."""
        return len(self._mailboxes)

    @property
    def has_requests(self) -> bool:
        """Somebody waits for more than answers to calls."""
        with self._lock:
            return bool(self._mailboxes) or any(one.mailboxes is not None for one in self._asked.values())

    def submission(self, requests: Sequence[Request]) -> tuple[int, Future[list[Stream]]]:
        """Its number, and a future of its streams. Raises: the error that `end_all` set."""
        with self._lock:
            number = self._next_number()
            asked = _Asked(Future(), [NumberedMailbox(number, request) for request in requests])
            self._asked[number] = asked
        return number, asked.answer

    def call(self, call: Control | None) -> tuple[int, Future[Any]]:
        """Its number, and a future of its answer. Raises: the error that `end_all` set."""
        with self._lock:
            number = self._next_number()
            asked = self._asked[number] = _Asked(Future(), call=call)
        return number, asked.answer

    def answered(self, told: Answered) -> None:
        """The child's answer, if anybody waits for it."""
        error = None if told.error is None else decoded(told.error)
        with self._lock:
            asked = self._asked.pop(told.number, None)
            if asked is None:
                return
            mailboxes = asked.mailboxes
            if mailboxes is not None and error is None:
                self._mailboxes.update({(one.number, one.request_id): one for one in mailboxes})
        if error is not None:
            self._fail(asked.answer, error)
            return
        # Whoever gave up waiting for them drops these streams, and that takes the requests back.
        streams = None if mailboxes is None else [Stream(mailbox, self._admitter) for mailbox in mailboxes]
        if asked.answer.set_running_or_notify_cancel():
            asked.answer.set_result(answer_of(asked.call, told.value) if streams is None else streams)

    def refuse(self, number: int, error: BaseException) -> None:
        """What was asked could not be sent."""
        with self._lock:
            asked = self._asked.pop(number, None)
        if asked is not None:
            self._fail(asked.answer, error)

    def deliver(self, event: Event) -> None:
        """An outcome came. One of a request that is gone is dropped: its consumer has had its terminal event."""
        key, outcome = (event.number, event.outcome.request_id), event.outcome
        with self._lock:
            take = self._mailboxes.get if isinstance(outcome, Progressed) else self._mailboxes.pop
            mailbox = take(key, None)
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

    def end_all(self, refusal: Refusal) -> None:
        """Give everybody who waits this error, and everybody who comes later."""
        with self._lock:
            self._closed = self._closed or refusal
            mailboxes, asked = list(self._mailboxes.values()), list(self._asked.values())
            self._mailboxes.clear()
            self._asked.clear()
        for mailbox in mailboxes:
            mailbox.put(failed(mailbox.request_id, refusal()))
        for one in asked:
            self._fail(one.answer, refusal())

    @staticmethod
    def _fail(answer: Future[Any], error: BaseException) -> None:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)

    def _next_number(self) -> int:
        if self._closed is not None:
            raise self._closed()
        self._last_number += 1
        return self._last_number
