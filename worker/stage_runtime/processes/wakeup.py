"""Ends a wait from anywhere: of a thread, or on file descriptors."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Wakeup:
    """An eventfd. `ring` takes no lock: any thread may call it, a signal handler, the garbage collector.

    It is closed only with its last reference, so a late `ring` never writes into another file.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """End the wait, or spare the next one."""
        with suppress(BlockingIOError):  # it has been rung 2⁶⁴ times
            os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """What was rung so far is heard."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for a ring. None: for as long as it takes."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        self.silence()

    def __del__(self) -> None:
        os.close(self.fd)
