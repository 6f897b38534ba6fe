"""A stage over HTTP on a real socket: real application, real engine, and an executor that makes small pictures."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import httpx
from msgspec.structs import replace

from stage_runtime.core.outcome import Completed, Outcome, Output, Progressed
from stage_runtime.core.request import Request
from stage_runtime.core.wave import Wave
from stage_runtime.engine.engine import Engine
from stage_runtime.hosting.client import StageClient
from stage_runtime.metrics import Metrics
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.records import SHAPES
from stage_runtime.server.http.app import Settings, create_app
from stage_runtime.server.http.connection import Bounds
from stage_runtime.server.http.drain import Drain
from stage_runtime.server.http.serve import HttpServer, listen, url_of
from support.builders import EngineBuilder
from support.scripted import PATIENCE_S, ScriptedExecutor

MODEL = ResolvedModel(record=SHAPES, model_index={}, path=Path("/nowhere"), defaults=SHAPES.defaults)
SERVED_NAME = "shapes"
IMAGES_URL = "/v1/images/generations"


class PictureExecutor(ScriptedExecutor):
    """A ScriptedExecutor whose pictures have the size that was asked for, in one colour."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, Request] = {}

    def submit(self, wave: Wave) -> None:
        """Remember the sizes."""
        super().submit(wave)
        self._asked |= {new.request.request_id: new.request for new in wave.new}

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick, its pictures drawn."""
        return [self._drawn(outcome) for outcome in super().poll(deadline_s)]

    def _drawn(self, outcome: Outcome) -> Outcome:
        match outcome:
            case Completed(output=output):
                return replace(outcome, output=self._picture(outcome.request_id, output))
            case Progressed(preview=Output() as preview):
                return replace(outcome, preview=self._picture(outcome.request_id, preview))
        return outcome

    def _picture(self, request_id: str, pixel: Output) -> Output:
        asked = self._asked[request_id].arguments
        width, height = int(str(asked["width"])), int(str(asked["height"]))
        return replace(pixel, data=pixel.data * (width * height), shape=(height, width, 3))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until another thread has made it so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it never came to be"
        threading.Event().wait(0.001)


class HttpStage:
    """Serves between `with` and its end, in a thread of its own.

    `executor` is told what to do before or between requests; `url` is where clients go.
    """

    def __init__(
        self,
        engine: EngineBuilder | None = None,
        executor: Callable[[], PictureExecutor] = PictureExecutor,
        *,
        model: ResolvedModel = MODEL,
        wait_ready: bool = True,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    ) -> None:
        """`executor` builds it in the engine's thread. `wait_ready`: enter only once the stage is warm."""
        self._built: list[PictureExecutor] = []

        def build() -> PictureExecutor:
            self._built.append(executor())
            return self._built[-1]

        self.engine: Engine = (engine or EngineBuilder().step_mode().slots(4)).executor(build).build()
        self.drain = Drain()
        self.metrics = Metrics("test")
        self.engine.observe(self.metrics)
        self._model = model
        self._wait_ready = wait_ready
        self._bounds = bounds
        self._askers = ThreadPoolExecutor(16, thread_name_prefix="asker")
        self._listening: socket.socket
        self._server: HttpServer | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="http-stage")

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return url_of(self._listening)

    @property
    def address(self) -> tuple[str, int]:
        """The same for a socket."""
        host, port = self._listening.getsockname()[:2]
        return host, port

    @property
    def executor(self) -> PictureExecutor:
        """What the engine built."""
        return self._built[0]

    def client(self, **headers: str) -> httpx.Client:
        """A client of it, to be used with `with`."""
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def post(self, body: dict[str, object], **headers: str) -> Future[httpx.Response]:
        """Ask for images in another thread."""

        def ask() -> httpx.Response:
            with self.client(**headers) as client:
                return client.post(IMAGES_URL, json=body)

        return self._askers.submit(ask)

    def wait_idle(self) -> None:
        """Wait until no request is left and the runner has forgotten all."""
        wait_until(lambda: not any(self.engine.outstanding().result(PATIENCE_S).values()))

    def unsent_bytes(self) -> int:
        """What the server holds of answers that its clients have not taken yet."""
        assert self._server is not None
        connections = list(self._server.server_state.connections)
        return sum(connection.transport.get_write_buffer_size() for connection in connections)

    def __enter__(self) -> Self:
        self._listening = listen("127.0.0.1", 0)
        self._thread.start()
        assert self._started.wait(PATIENCE_S), "the server did not start"
        self.engine.start()
        if self._wait_ready:
            self.engine.wait_ready(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close(PATIENCE_S)
        self._askers.shutdown()
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"

    async def _serve(self) -> None:
        app = create_app(
            StageClient(self.engine),
            self._model,
            Settings(stage_name="test", served_name=SERVED_NAME),
            metrics=self.metrics,
            drain=self.drain,
        )
        self._server = HttpServer(app, self._bounds)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        await self._server.accepting.wait()
        self._started.set()
        await serving
