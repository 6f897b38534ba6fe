"""Whoever logs goes on, whatever becomes of who reads."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_runtime.log import JsonFormatter
from stage_runtime.log_writer import LineWriter

LINES = 5_000
MOST = 100_000


class Pipe:
    """A pipe that nobody reads until `read`."""

    def __init__(self) -> None:
        self.out, into = os.pipe()
        self.into = os.fdopen(into, "w")

    def read(self, until: str) -> list[dict[str, object]]:
        """Lines up to the one with that message."""
        lines: list[dict[str, object]] = []
        with os.fdopen(self.out, closefd=True) as out:
            for text in out:
                lines.append(json.loads(text))
                if lines[-1]["message"] == until:
                    return lines
        raise AssertionError(f"{until} never came")


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    one.into.close()


def writer(stream: object) -> LineWriter:
    handler = LineWriter(stream, most_characters=MOST)  # type: ignore[arg-type]
    handler.setFormatter(JsonFormatter("shapes"))
    return handler


def say(handler: logging.Handler, message: str) -> None:
    handler.handle(logging.LogRecord("a", logging.INFO, "", 0, message, (), None))


def test_who_logs_to_a_reader_that_stalls_goes_on_and_what_was_dropped_is_counted(pipe: Pipe) -> None:
    handler = writer(pipe.into)
    for number in range(LINES):
        say(handler, f"line {number}")
    done = threading.Thread(target=lambda: (say(handler, "late"), handler.flush()))
    reader: list[list[dict[str, object]]] = []
    reading = threading.Thread(target=lambda: reader.append(pipe.read("last")))
    reading.start()
    done.start()
    done.join()
    handler.flush()
    say(handler, "last")
    reading.join()
    lines = reader[0]
    dropped = sum(int(str(line["lines"])) for line in lines if line["message"] == "log lines dropped")
    told = [line for line in lines if str(line["message"]).startswith(("line ", "late"))]
    assert dropped > 0
    assert len(told) + dropped == LINES + 1
    assert [line["message"] for line in told[:3]] == ["line 0", "line 1", "line 2"]
    handler.close()


def test_the_end_of_a_process_does_not_wait_for_a_reader_that_stalls(pipe: Pipe) -> None:
    handler = writer(pipe.into)
    for number in range(LINES):
        say(handler, f"line {number}")
    handler.close()
    pipe.read("line 0")


def test_what_was_logged_before_the_end_is_out_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        handler = writer(file)
        for number in range(100):
            say(handler, f"line {number}")
        handler.close()
        assert len(path.read_text().splitlines()) == 100


def test_a_reader_that_is_gone_ends_nobody(pipe: Pipe) -> None:
    os.close(pipe.out)
    handler = writer(pipe.into)
    say(handler, "into the void")
    say(handler, "again")
    handler.close()


def test_a_stream_without_a_file_is_written_as_it_is() -> None:
    stream = io.StringIO()
    handler = writer(stream)
    say(handler, "half of \ud83d")
    handler.close()
    assert json.loads(stream.getvalue())["message"] == "half of \ud83d"


def test_a_line_that_cannot_be_made_costs_itself_only(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    handler = writer(stream)
    handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "%d", ("no number",), None))
    say(handler, "good")
    handler.close()
    assert json.loads(stream.getvalue())["message"] == "good"
    assert "Logging error" in capsys.readouterr().err


def test_a_forked_process_logs_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("a") as file:
        handler = writer(file)
        say(handler, "parent")
        handler.flush()
        child = os.fork()
        if child == 0:
            say(handler, "child")
            handler.close()
            os._exit(0)
        os.waitpid(child, 0)
        handler.close()
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["parent", "child"]
