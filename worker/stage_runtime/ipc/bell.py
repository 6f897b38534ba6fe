"""Ends a wait on file descriptors from anywhere."""

from __future__ import annotations

import os
from contextlib import suppress


class Bell:
    """An eventfd. It is closed only with its last reference, so a late `ring` never writes into another file."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it has been rung 2⁶⁴ times
            os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        os.close(self.fd)
