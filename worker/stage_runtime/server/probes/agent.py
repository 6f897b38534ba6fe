"""Serving in a pod that isn't its replica's first: the probes only, until its ranks end or it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import Future
from threading import Thread

from fastapi import FastAPI
from starlette.responses import JSONResponse

from stage_api import names
from stage_runtime.executor.agent import Agent
from stage_runtime.server.http.request_heads import AbsoluteForm, Heads
from stage_runtime.server.http.serve import LINGER_S, HttpServer, first, stop_signals, url_of

log = logging.getLogger(__name__)


async def serve_agent(agent: Agent, *, listening: socket.socket, patience_s: float) -> BaseException | None:
    """Run `agent` and answer probes. What its ranks died of; None when they ended as they were told.

    Told to stop, the ranks have `patience_s` to be stopped by the engine, which drains in the first pod meanwhile.
    Only for the main thread.
    """
    server = HttpServer(probes(agent))
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http")
    ended: Future[BaseException | None] = Future()
    # A daemon: nobody waits for an agent that still looks for its engine.
    Thread(target=_run, args=(agent, ended), name="agent", daemon=True).start()
    running = asyncio.create_task(_result(ended), name="agent")
    with stop_signals() as stop:
        await first(server.accepting.wait(), serving)
        log.info("listening", extra={"url": url_of(listening)})
        await first(stop.wait(), running, serving)
        if stop.is_set() and agent.attends:
            agent.stop(patience_s)
            await first(running)
        server.should_exit = True
        await first(serving, timeout_s=LINGER_S)
    return running.result() if running.done() else None


def probes(agent: Agent) -> FastAPI:
    """GET /livez, /readyz and /startupz; 200 or 503."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get(names.PATH_LIVE)
    async def livez() -> JSONResponse:
        return _answer(not agent.ended.is_set())

    @app.get(names.PATH_READY)
    @app.get(names.PATH_STARTUP)
    async def readyz() -> JSONResponse:
        return _answer(agent.attends)

    app.add_middleware(Heads)
    app.add_middleware(AbsoluteForm)
    return app


def _answer(good: bool) -> JSONResponse:
    return JSONResponse({"ok": good}, 200 if good else 503)


async def _result(ended: Future[BaseException | None]) -> BaseException | None:
    return await asyncio.wrap_future(ended)


def _run(agent: Agent, ended: Future[BaseException | None]) -> None:
    ended.set_running_or_notify_cancel()
    death: BaseException | None = None
    try:
        agent.run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the process leaves with its code
        death = error
    ended.set_result(death)
