"""Control calls of an engine over TCP with a token, as in a pod."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Final, Self

from stage_runtime.engine.engine import Engine
from stage_runtime.hosting.client import StageClient
from stage_runtime.server.control.app import create_control_app
from stage_runtime.server.http.serve import HttpServer, listen
from support.scripted import PATIENCE_S

TOKEN: Final = "a-token-that-only-the-test-knows"


class ControlServer:
    """Serves between `with` and its end, in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listening = listen("127.0.0.1", 0)
        self._folder = tempfile.TemporaryDirectory()
        self._started = threading.Event()
        self._server: HttpServer | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="control-server")

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listening.getsockname()[:2]
        return host, port

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE_S), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        self._folder.cleanup()

    async def _serve(self) -> None:
        token = Path(self._folder.name) / "token"
        token.write_text(TOKEN)
        app = create_control_app(
            StageClient(self._engine), traces=Path(self._folder.name) / "traces", token=token
        )
        self._server = HttpServer(app)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        await self._server.accepting.wait()
        self._started.set()
        await serving
