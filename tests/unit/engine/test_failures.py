"""A request that failed is in the log: once, with its id, and with nothing that its client sent."""

from __future__ import annotations

import logging

import pytest

from stage_runtime.core.errors import EngineDeadError, InvalidRequest, NotAdmitting, RequestFailed
from stage_runtime.core.outcome import Failed, failed
from stage_runtime.engine.failures import log_failure, quotable
from support.builders import RequestBuilder

PROMPT = "a lighthouse at dusk in heavy rain"


def logged(caplog: pytest.LogCaptureFixture, error: Exception) -> list[logging.LogRecord]:
    request = RequestBuilder("r1").argument("prompt", PROMPT).argument("negative_prompt", "").build()
    with caplog.at_level(logging.INFO):
        log_failure(request, failed("r1", error))
    return caplog.records


def test_a_failure_is_one_line_with_id_type_and_trace(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise RuntimeError("shapes 3 and 4 don't fit")
    except RuntimeError as error:
        (record,) = logged(caplog, error)
    assert record.levelno == logging.ERROR
    assert record.__dict__["request_id"] == "r1"
    assert record.__dict__["error"] == "RuntimeError: shapes 3 and 4 don't fit"
    assert "test_failures.py" in record.__dict__["trace"]


@pytest.mark.parametrize(
    "message",
    [PROMPT, PROMPT.upper(), f"cut: {PROMPT[6:25]}…", f"tokens of {PROMPT!r}", "got tensor([[0.5, 1.0]])"],
)
def test_what_a_client_sent_and_what_was_computed_of_it_is_not_logged(
    caplog: pytest.LogCaptureFixture, message: str
) -> None:
    (record,) = logged(caplog, ValueError(message))
    assert record.__dict__["error"] == "(it quotes the request)"
    assert "lighthouse" not in str(vars(record))


def test_a_clients_own_fault_is_told_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(caplog, InvalidRequest("width: too large", "width"))
    assert record.levelno == logging.INFO
    assert "trace" not in record.__dict__


@pytest.mark.parametrize("error", [EngineDeadError("rank 1 is gone"), NotAdmitting("closed")])
def test_what_ends_with_the_engine_is_told_by_that_end_alone(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    assert logged(caplog, error) == []


def test_a_short_text_counts_whole_and_an_empty_one_not() -> None:
    assert not quotable("no such style: noir", ["noir"])
    assert quotable("no such style", ["noir", "", " "])


def test_a_failure_without_a_trace_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(caplog, RequestFailed("nan"))
    assert record.__dict__["error"] == "nan"
    assert Failed("a", "nan").trace == ""
