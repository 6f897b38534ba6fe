"""Pods are asked themselves, for little and not for long; whatever else they answer is no answer."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from stage_operator.client import pod_http
from stage_operator.client.pod_http import PodHttp, Unreachable

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ask(handler: Handler, host: str = "127.0.0.1") -> dict[str, Any]:
    """What comes of asking a server that answers so."""

    async def work() -> dict[str, Any]:
        app = web.Application()
        app.router.add_get("/startupz", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, host, 0)
        await site.start()
        client = PodHttp()
        try:
            return await client.get(host, runner.addresses[0][1], "/startupz")
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(work())


@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_object_is_an_answer_whatever_the_status(status: int, host: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"ok": False}, status=status)

    assert ask(handler, host) == {"ok": False}


async def _too_much(request: web.Request) -> web.Response:
    return web.Response(body=b'{"x": "' + b"x" * pod_http.MAX_BYTES + b'"}')


async def _bomb(request: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"{}" + b" " * 10_000_000), headers={"Content-Encoding": "gzip"})


async def _elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://192.0.2.1/")


async def _list(request: web.Request) -> web.Response:
    return web.json_response([])


async def _nested(request: web.Request) -> web.Response:
    return web.Response(body=b"[" * 100_000)


async def _nothing(request: web.Request) -> web.Response:
    return web.Response()


async def _never(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"{")
    await asyncio.Event().wait()  # ended by the client's deadline
    return response


@pytest.mark.parametrize("handler", [_too_much, _bomb, _elsewhere, _list, _nested, _nothing, _never])
def test_anything_else_is_none_and_says_where(handler: Handler) -> None:
    with pytest.raises(Unreachable, match=r"^127\.0\.0\.1:\d+: "):
        ask(handler)


def test_a_port_where_nobody_listens_is_unreachable() -> None:
    async def work() -> None:
        client = PodHttp()
        try:
            await client.get("127.0.0.1", 1, "/startupz")
        finally:
            await client.close()

    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: "):
        asyncio.run(work())
