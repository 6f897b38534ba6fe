"""Writes log lines in a thread of its own: who logs never waits for who reads.

A reader that stalls (a full pipe, a frozen terminal) would stop an event loop at its next line. So lines wait here, up
to a bound; what is above it is dropped, counted, and told once the reader goes on.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final, TextIO

MOST_CHARACTERS: Final = 4 << 20
"""Of lines that wait."""
PATIENCE_S: Final = 1.0
"""How long the end of a process waits for its last lines to get out."""


class LineWriter(logging.Handler):
    """Formats a record where it is logged, and writes it elsewhere. Any thread."""

    def __init__(self, stream: TextIO, *, most_characters: int = MOST_CHARACTERS) -> None:
        super().__init__()
        self._write = _writer(stream)
        self._most = most_characters
        self._lines: deque[str] = deque()
        self._changed = Condition(self.lock)
        """NB: the handler's own lock, which logging makes anew in a forked process."""
        self._waiting = 0
        self._dropped = 0
        self._writing = self._closed = False
        self._thread: Thread | None = None
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line. Never waits for the stream."""
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001 - as every handler: a line that can't be made ends nobody's work
            self.handleError(record)
            return
        with self._changed:
            if self._waiting + len(line) > self._most:
                self._dropped += 1
                return
            self._put(self._take_note() + line)
            if self._thread is None or self._pid != os.getpid():
                self._begin()

    def flush(self) -> None:
        """Wait until all lines are out, but no longer than a reader may take that has not stalled."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing), PATIENCE_S)

    def close(self) -> None:
        """Write what is there, within the same time, and end the thread."""
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _put(self, text: str) -> None:
        self._lines.append(text)
        self._waiting += len(text)
        self._changed.notify_all()

    def _take_note(self) -> str:
        """A word about what was dropped since the last line; empty if nothing was."""
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return ""
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, "log lines dropped", (), None)
        record.__dict__["lines"] = dropped
        return self.format(record) + "\n"

    def _begin(self) -> None:
        """NB: a forked process has the lines, and no thread."""
        self._pid, self._writing = os.getpid(), False
        self._thread = Thread(target=self._write_on, name="log", daemon=True)
        self._thread.start()

    def _write_on(self) -> None:
        while (text := self._next()) is not None:
            try:
                self._write(text)
            except (OSError, ValueError):
                pass  # nobody reads any more
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            # Ended by `close`, or with the process.
            self._changed.wait_for(lambda: self._lines or self._dropped or self._closed)
            if not self._lines:
                note = self._take_note()
                self._writing = bool(note)
                return note or None
            text = self._lines.popleft()
            self._waiting -= len(text)
            self._writing = True
            return text


def _writer(stream: TextIO) -> Callable[[str], None]:
    """NB: past the stream's own buffer, whose lock a stalled write would hold at the end of the process."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return lambda text: _write_and_flush(stream, text)
    return lambda text: _write_all(fd, text.encode(errors="replace"))


def _write_and_flush(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
