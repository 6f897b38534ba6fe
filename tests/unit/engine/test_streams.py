"""What a consumer sees, and what happens when it goes away."""

from __future__ import annotations

import pytest

from stage_runtime.core.errors import (
    EngineDeadError,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    StageError,
)
from stage_runtime.core.outcome import Aborted, Completed, Outcome, Progressed, failed
from stage_runtime.core.request import Request
from stage_runtime.engine.streams import Mailbox, Stream
from support.builders import RequestBuilder, a_request
from support.scripted import pixel


class Notes:
    """An owner that writes down who went away."""

    def __init__(self) -> None:
        self.taken_back: list[str] = []
        self.dropped: list[str] = []

    def take_back(self, mailbox: Mailbox) -> None:
        self.taken_back.append(mailbox.request_id)

    def note_dropped(self, mailbox: Mailbox) -> None:
        self.dropped.append(mailbox.request_id)


DONE = Completed("a", pixel(7), 4)


def opened(request: Request | None = None) -> tuple[Mailbox, Stream, Notes]:
    mailbox, notes = Mailbox(request or a_request("a")), Notes()
    return mailbox, Stream(mailbox, notes), notes


def preview(step: int) -> Progressed:
    return Progressed("a", step, 99, pixel(step), 0)


def test_progress_that_nobody_read_is_replaced_by_later_progress() -> None:
    mailbox, stream, _ = opened()
    for step in (1, 2, 3):
        mailbox.put(Progressed("a", step, 4))
    mailbox.put(DONE)
    assert list(stream) == [Progressed("a", 3, 4), DONE]


def test_previews_are_kept_beside_later_progress() -> None:
    mailbox, stream, _ = opened(RequestBuilder("a").previews(1, 3).build())
    for outcome in (preview(1), Progressed("a", 2, 99), preview(3), Progressed("a", 4, 99), DONE):
        mailbox.put(outcome)
    assert list(stream) == [preview(1), Progressed("a", 2, 99), preview(3), Progressed("a", 4, 99), DONE]


@pytest.mark.invariant("BATCH-INV-003")
def test_a_slow_consumer_never_holds_more_previews_than_were_asked_for() -> None:
    mailbox, stream, _ = opened(RequestBuilder("a").previews(1, 2).build())
    for step in range(1, 50):
        mailbox.put(preview(step))
    mailbox.put(DONE)
    assert list(stream) == [preview(1), preview(2), Progressed("a", 49, 99), DONE]


def test_every_chunk_is_kept_whoever_reads_and_however_many_previews_were_asked_for() -> None:
    mailbox, stream, _ = opened(RequestBuilder("a").previews(1).build())
    chunks = [Progressed("a", step, 99, pixel(step), step - 2, chunk=True) for step in range(2, 9)]
    for outcome in (preview(1), *chunks, Progressed("a", 9, 99), preview(10), DONE):
        mailbox.put(outcome)
    assert list(stream) == [preview(1), *chunks, Progressed("a", 10, 99), DONE]


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
@pytest.mark.parametrize(
    "late", [Progressed("a", 4, 4), Aborted("a"), DONE], ids=["progress", "abort", "output"]
)
def test_nothing_comes_after_the_terminal_event(late: Outcome) -> None:
    mailbox, stream, _ = opened()
    mailbox.put(DONE)
    mailbox.put(late)
    assert list(stream) == [DONE]
    assert list(stream) == []


def test_the_result_is_there_also_after_the_events_were_read() -> None:
    mailbox, stream, _ = opened()
    mailbox.put(DONE)
    assert list(stream) == [DONE]
    assert stream.result(timeout_s=0) == DONE


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (Aborted("a"), RequestAborted),
        (failed("a", InvalidRequest("too wide", "width")), InvalidRequest),
        (failed("a", ValueError("nan")), RequestFailed),
        (failed("a", EngineDeadError("killed")), EngineDeadError),
    ],
    ids=["aborted", "invalid", "model", "dead"],
)
def test_a_bad_end_is_raised_as_the_error_it_was(ending: Outcome, error: type[StageError]) -> None:
    mailbox, stream, _ = opened()
    mailbox.put(ending)
    with pytest.raises(error):
        stream.result(timeout_s=0)


def test_a_result_that_does_not_come_in_time_is_a_timeout() -> None:
    _, stream, _ = opened()
    with pytest.raises(TimeoutError, match="request a is not done"):
        stream.result(timeout_s=0)


def test_a_subscriber_is_told_of_each_outcome_and_of_what_was_there_before() -> None:
    mailbox, stream, _ = opened()
    mailbox.put(Progressed("a", 1, 4))
    seen: list[Outcome | None] = []
    stream.subscribe(lambda: seen.append(mailbox.take()))
    mailbox.put(DONE)
    assert seen == [Progressed("a", 1, 4), DONE]


def test_taking_from_an_empty_stream_gives_nothing_at_once() -> None:
    _, stream, _ = opened()
    assert stream.take() is None


def test_closing_takes_the_request_back_and_lets_go_of_the_unread() -> None:
    mailbox, stream, notes = opened()
    mailbox.put(Progressed("a", 1, 4))
    with stream:
        pass
    assert notes.taken_back == ["a"]
    assert stream.take() is None


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_a_consumer_that_is_forgotten_is_noticed() -> None:
    mailbox, stream, notes = opened()
    stream.subscribe(lambda: None)
    del stream
    assert notes.dropped == ["a"]
    assert mailbox.terminal is None
