"""How the operator logs: one JSON object a line, or plain text on a terminal.

Whoever logs gives a constant message and its values as `extra` fields. The stage that the current task works on is
added by itself.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO

stage: Final[ContextVar[str | None]] = ContextVar("stage", default=None)
"""namespace/name of the stage that the current task works on."""

_STANDARD: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "asctime",
    "k8s_ref",  # kopf's own fields, which name the object in a form of their own
    "k8s_skip",
    "message",
    "settings",
    "taskName",
}
_QUIET: Final = {
    # It says at INFO and DEBUG what our own lines and metrics say.
    "kopf": logging.WARNING,
    "asyncio": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "kopf._cogs.clients": logging.CRITICAL,
    # It warns that it doesn't take signals outside of the main thread, which is why it runs there.
    "kopf._core.reactor.running": logging.ERROR,
}


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every logger of the process to `stream` (standard error), plain when it is a terminal."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(PlainFormatter() if target.isatty() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, stage, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Values that JSON can't hold are shown as `repr` does."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (current := stage.get()) is not None:
            line["stage"] = current
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


class PlainFormatter(logging.Formatter):
    """A record for a person at a terminal: time, level, stage, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it when there is one."""
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        about = f" {current}:" if (current := stage.get()) is not None else ""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        text = f"{at} {record.levelname.lower():7}{about} {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
