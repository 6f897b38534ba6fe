"""Serving until told to stop, or until the engine dies: sockets, signals, the drain, the last answers.

Only this file and `connection.py` know uvicorn. It returns why it ended; leaving the process with that is the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import uvicorn
from fastapi import FastAPI

from stage_api.outcome import ExitCode
from stage_runtime.core.control import Wake
from stage_runtime.core.errors import EngineDeadError, StageError
from stage_runtime.engine.phase import STARTING, Phase
from stage_runtime.hosting.client import StageClient
from stage_runtime.server.http.connection import Bounds, Connection
from stage_runtime.server.http.drain import Door, Drain
from stage_runtime.server.http.request_heads import MAX_HEAD_BYTES

LINGER_S: Final = 2.0  # at most, for answers to get out after a death or a drain
WATCH_S: Final = 0.1  # between two looks at the engine's health
KEEP_ALIVE_S: Final = 65.0  # longer than what proxies keep idle connections for, so that they close first
BACKLOG: Final = 2048  # connections that wait to be accepted
ACCEPTED_AT_ONCE: Final = (
    4  # of those, before others are served; each takes an open file before it can be refused
)
PEER_IDLE_S: Final = (
    30  # how long a connection may be silent before its other end is asked whether it is there
)
PEER_RETRY_S: Final = 10
PEER_RETRIES: Final = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How a stage goes down. Seconds."""

    admit_s: float
    """How long requests are still taken after the stage has said that it is going."""
    finish_s: float
    """How long what runs may then take."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling."""

    def __init__(self, app: FastAPI, bounds: Bounds | None = None) -> None:
        """`bounds`: None for those that this process's limit of open files leaves."""
        bounds = bounds or Bounds.within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.accepting = asyncio.Event()
        """Set once connections are accepted."""
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", partial(Connection, bounds=bounds)),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                backlog=ACCEPTED_AT_ONCE,
                timeout_keep_alive=int(KEEP_ALIVE_S),
                timeout_graceful_shutdown=int(LINGER_S),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(
                BACKLOG
            )  # NB: asyncio takes one number for how many may wait and how many it takes in
        self.accepting.set()

    def finish_connections(self) -> None:
        """End idle connections, and each other one after the answer that is under way."""
        for connection in list(self.server_state.connections):
            cast("Connection", connection).finish()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class CannotListen(StageError):
    """The address is taken, or isn't one of this machine's. Another try would find it so again: it is the config's."""

    exit_code = ExitCode.CONFIG


def listen(host: str | None, port: int) -> socket.socket:
    """A listening socket. No host means every address, IPv6 and IPv4; port 0 means any free one.

    Raises: CannotListen.
    """
    try:
        return _listen(host, port)
    except (OSError, ValueError) as error:  # ValueError: a name that is no host, a number that is no port
        where = f"port {port}" if host is None else f"{host or 'an empty name'}, port {port}"
        why = getattr(error, "strerror", None) or error
        raise CannotListen(f"can't listen on {where}: {why}") from error


def _listen(host: str | None, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise ValueError("no such port")  # a resolver would take what is left of it
    if host is not None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    elif socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    else:
        family, address = socket.AF_INET, ("0.0.0.0", port)
    # NB: the protocol must be named. asyncio turns Nagle's delay, 40 ms an answer, off only where it is.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_vanished_peers(listening)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host is not None))
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _notice_vanished_peers(listening: socket.socket) -> None:
    """End connections whose other end is gone without a word, so that its work ends too. Connections inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PEER_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PEER_RETRY_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PEER_RETRIES)


def url_of(listening: socket.socket) -> str:
    """Where a client on this machine finds it."""
    address, port = listening.getsockname()[:2]
    local = {"::": "localhost", "0.0.0.0": "localhost"}.get(address, address)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"


async def serve(  # noqa: PLR0913 - what a serving process is made of
    app: FastAPI,
    stage: StageClient,
    drain: Drain,
    *,
    listening: socket.socket,
    grace: Grace,
    close_engine: Callable[[float], None],
    beside: tuple[FastAPI, socket.socket] | None = None,
) -> BaseException | None:
    """Serve until SIGTERM, SIGINT or the engine's death. None when it was drained, else what it died of.

    `close_engine` ends what still runs, within so many seconds; called in a thread, and not while the stage starts:
    loading can't be broken off, nobody waits for it, and it ends with the process. A second SIGINT ends the process
    at once. `beside`: another application and its own socket, served as long. Only for the main thread.
    """
    server = HttpServer(app)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http")
    dying = asyncio.create_task(_end(stage), name="watch")
    try:
        with stop_signals() as stop, _served_beside(beside):
            await first(server.accepting.wait(), serving)
            log.info("listening", extra={"url": url_of(listening)})
            await first(stop.wait(), dying, serving)
            starting = stage.phase in STARTING
            drain.move(Door.CLOSING)
            server.finish_connections()
            if stop.is_set() and not dying.done() and not starting:
                waking = None if beside is None else asyncio.create_task(_wake(stage), name="wake")
                await _drain(stage, drain, grace, dying)
                if waking is not None:
                    waking.cancel()
            drain.move(Door.CLOSED)
            if not starting:
                await _close(close_engine)
            await first(drain.idle(), timeout_s=LINGER_S)
            server.should_exit = True
            await serving
    finally:
        dying.cancel()
    return dying.result() if dying.done() and not dying.cancelled() else None


@contextlib.contextmanager
def _served_beside(beside: tuple[FastAPI, socket.socket] | None) -> Iterator[None]:
    """Served meanwhile. Who still waits for an answer of it in the end has lost it: the process ends."""
    if beside is None:
        yield
        return
    app, listening = beside
    serving = asyncio.create_task(HttpServer(app).serve(sockets=[listening]), name="beside")
    try:
        yield
    finally:
        serving.cancel()


async def _wake(stage: StageClient) -> None:
    """Have what was taken in finish, though somebody has paused the stage or put it to sleep."""
    try:
        await stage.control(Wake())
    except StageError as error:
        log.warning("can't go on to drain", extra={"error": str(error)})


async def _drain(
    stage: StageClient, drain: Drain, grace: Grace, dying: asyncio.Task[BaseException | None]
) -> None:
    log.info("draining", extra={"admit_seconds": grace.admit_s, "finish_seconds": grace.finish_s})
    await first(dying, timeout_s=grace.admit_s)
    drain.move(Door.CLOSED)
    stage.close_admission()
    await first(drain.idle(), dying, timeout_s=grace.finish_s)
    left = stage.snapshot()
    log.info("drained", extra={"left": left.waiting + left.running})


async def _end(stage: StageClient) -> BaseException | None:
    """What the engine dies of, once it does; a tick that hangs is a death too. None when it ended in order.

    An engine in a process of its own may do so: that process can be told to stop like any other.
    """
    while stage.phase is not Phase.CLOSED:
        try:
            stage.check_health()
        except EngineDeadError as error:
            return stage.death or error
        await asyncio.sleep(WATCH_S)
    return None


async def _close(close_engine: Callable[[float], None]) -> None:
    """End what still runs. A tick that takes longer is cut off by the end of the process."""
    try:
        await asyncio.to_thread(close_engine, LINGER_S)
    except EngineDeadError as error:
        log.warning("engine did not close", extra={"error": str(error)})


async def first(
    *waits: Coroutine[Any, Any, object] | asyncio.Task[Any], timeout_s: float | None = None
) -> None:
    """Wait for any of `waits`. Tasks go on, coroutines are cancelled."""
    own = {asyncio.ensure_future(wait) for wait in waits if asyncio.iscoroutine(wait)}
    given = {wait for wait in waits if isinstance(wait, asyncio.Task)}
    try:
        await asyncio.wait(own | given, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()


@contextlib.contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT. The handlers of before are put back in the end."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def asked(name: str) -> None:
        log.info("asked to stop", extra={"signal": name})
        stop.set()
        # From here on Ctrl-C is the system's: the process ends where it stands.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in before:
        loop.add_signal_handler(number, asked, number.name)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
