"""The line between a local run and the pod command it started: at each end one learns that the other is gone.

A socket pair, since the kernel closes its ends however a process dies. A signal on the parent's death would be tied
to the thread that started the child, and come when that thread ends.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Self

_MAX_URL_BYTES = 4096


class ChildEnd:
    """The pod's end. Ends the process once nobody holds the other end."""

    def __init__(self, fd: int) -> None:
        """`fd` is the number that the parent passed on. Raises: OSError when there is no socket of that number."""
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        threading.Thread(target=self._watch, name="parent-link", daemon=True).start()

    def tell(self, url: str) -> None:
        """Say where the stage listens."""
        self._socket.sendall(url.encode() + b"\n")

    def _watch(self) -> None:
        while True:
            try:
                if not self._socket.recv(1):
                    break
            except OSError:
                break
        # Nobody is left who would read an exit code, and nobody whom an orderly end would serve.
        os._exit(1)


class ParentEnd:
    """The local run's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._ours = ours
        self._theirs: socket.socket | None = theirs

    @property
    def fd(self) -> int:
        """Number of the end that the child gets. Before `handed_over` only."""
        assert self._theirs is not None
        return self._theirs.fileno()

    def handed_over(self) -> None:
        """The child has its end: close it here, so that its death is seen."""
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None

    def url(self) -> str | None:
        """Where the child listens, once it says so; None when it ended before."""
        heard = b""
        while not heard.endswith(b"\n") and len(heard) < _MAX_URL_BYTES:
            try:
                piece = self._ours.recv(_MAX_URL_BYTES)
            except OSError:
                return None
            if not piece:
                return None
            heard += piece
        return heard.decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.handed_over()
        self._ours.close()
