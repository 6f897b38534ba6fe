"""A balancer of connections, as a Service is one: each new one goes to a backend that was ready when last looked at."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, Self

LOOK_EVERY_S: Final = 0.2
"""Between two looks at who is ready; the readiness probe of a pod has a period, too."""

Backend = tuple[str, int]


class Balancer:
    """Passes bytes on between `with` and its end. A connection stays with its backend for as long as both want it."""

    def __init__(self, backends: Sequence[Backend], is_ready: Callable[[Backend], bool]) -> None:
        self._backends = backends
        self._is_ready = is_ready
        self._ready: list[Backend] = []
        self._turn = count()
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads = [
            threading.Thread(target=self._look, name="balancer-look"),
            threading.Thread(target=self._accept, name="balancer-accept"),
        ]

    @property
    def url(self) -> str:
        """Where clients connect."""
        host, port = self._listening.getsockname()
        return f"http://{host}:{port}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            self._ready = [backend for backend in self._backends if self._is_ready(backend)]
            self._over.wait(LOOK_EVERY_S)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                continue
            backend = self._connected()
            if backend is None:
                client.close()
                continue
            for one, other in ((client, backend), (backend, client)):
                self._threads.append(
                    threading.Thread(target=_pass_on, args=(one, other), name="balancer-pass")
                )
                self._threads[-1].start()

    def _connected(self) -> socket.socket | None:
        ready = self._ready
        try:
            return socket.create_connection(ready[next(self._turn) % len(ready)]) if ready else None
        except OSError:
            return None


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends, and then neither is left. Whoever passes on from a socket closes it."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    source.close()
