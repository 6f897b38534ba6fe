"""The form of a log line."""

from __future__ import annotations

import io
import json
import logging

from stage_runtime.log import JsonFormatter, PlainFormatter, request_id


def record(message: str = "wave finished", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("engine.loop", logging.INFO, "loop.py", 1, message, (), None)
    vars(made).update(fields)
    return made


def test_a_line_is_one_json_object_with_stage_and_fields() -> None:
    line = json.loads(JsonFormatter("shapes").format(record(wave=3)))
    assert {key: line[key] for key in ("level", "logger", "message", "stage", "wave")} == {
        "level": "info",
        "logger": "engine.loop",
        "message": "wave finished",
        "stage": "shapes",
        "wave": 3,
    }
    assert "request_id" not in line


def test_a_line_names_the_request_that_it_was_written_for() -> None:
    token = request_id.set("req-1")
    try:
        line = json.loads(JsonFormatter("shapes").format(record()))
    finally:
        request_id.reset(token)
    assert line["request_id"] == "req-1"


def test_a_message_with_line_breaks_stays_one_line() -> None:
    assert "\n" not in JsonFormatter("shapes").format(record("two\nlines\u2028"))


def test_a_value_that_json_cannot_hold_is_shown() -> None:
    line = json.loads(JsonFormatter("shapes").format(record(where=io)))
    assert "module 'io'" in line["where"]


def test_a_terminal_gets_text_with_the_fields_behind_it() -> None:
    assert PlainFormatter().format(record(wave=3)).endswith("info    wave finished wave=3")
