"""How this process logs: one JSON object a line, or plain text on a terminal.

Decides the form only. Whoever logs gives a constant message and its values as `extra` fields; prompts and
outputs are never among them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO

from stage_api import names
from stage_api.errors import Fault, SpecError, show
from stage_runtime.log_writer import LineWriter

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The x-request-id of the HTTP request that the current task serves."""

ENV_LEVEL: Final = names.ENV_LOG_LEVEL
"""Least level of what is logged, where nobody says otherwise."""
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_STANDARD: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "asctime",
    "color_message",  # uvicorn's copy of the message for terminals
    "message",
    "taskName",
}


def configure(
    stage: str, *, level: str | None = None, stream: TextIO | None = None, rank: int | None = None
) -> None:
    """Send every logger of the process to `stream` (standard error), plain when it is a terminal.

    `rank` is told with each line of a rank's own process.

    Raises: SpecError if the environment names no level; what follows is logged nevertheless.
    """
    target = sys.stderr if stream is None else stream
    handler = LineWriter(target)
    handler.setFormatter(PlainFormatter() if target.isatty() else JsonFormatter(stage, rank))
    wanted = level or os.environ.get(ENV_LEVEL) or "INFO"
    known = wanted.upper() in _LEVELS
    logging.basicConfig(level=wanted.upper() if known else "INFO", handlers=[handler], force=True)
    logging.captureWarnings(True)  # else they are written by whoever warns
    # Its two lines per start say nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if not known:
        raise SpecError([Fault(ENV_LEVEL, f"one of {', '.join(_LEVELS)}", show(wanted))])


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, stage, request_id, then its fields."""

    def __init__(self, stage: str, rank: int | None = None) -> None:
        super().__init__()
        self._stage, self._rank = stage, rank

    def format(self, record: logging.LogRecord) -> str:
        """Values that JSON can't hold are shown as `repr` does."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "stage": self._stage,
        }
        if self._rank is not None:
            line["rank"] = self._rank
        if (current := request_id.get()) is not None:
            line["request_id"] = current
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


class PlainFormatter(logging.Formatter):
    """A record for a person at a terminal: time, level, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it when there is one."""
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        text = f"{at} {record.levelname.lower():7} {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
