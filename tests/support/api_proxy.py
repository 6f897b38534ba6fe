"""A plain HTTP proxy before an API server, that a test makes misbehave: `python -m support.api_proxy KUBECONFIG`.

It prints its port, and then does what it is told on standard input, a word and perhaps a number a line, answering
`ok` to each:

    cut             end every open connection to the watches, as a restart of the API server does
    expire          end every watch with 410, and lose what happens until then
    fail CODE       end every watch with an error of that code within its stream
    deaf            pass no event on, and keep the connections open
    hear            pass events on again; those that came meanwhile are lost
    down / up       refuse all requests with 503, or answer them again
    busy N          answer the next N writes with 429 and Retry-After 1
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration

_HOP = {"connection", "content-length", "host", "transfer-encoding", "keep-alive", "accept-encoding"}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


@dataclass
class Mood:
    """How it behaves at present."""

    down: bool = False
    deaf: bool = False
    busy: int = 0
    watches: set[asyncio.Queue[bytes | None]] = field(default_factory=set)

    def tell(self, line: bytes | None) -> None:
        """Put a line into every watch; None ends it."""
        for watch in tuple(self.watches):
            watch.put_nowait(line)


class Proxy:
    """Passes requests on to one API server."""

    def __init__(self, configuration: Configuration, mood: Mood) -> None:
        self._configuration = configuration
        self._mood = mood
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data
        )
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0), read_bufsize=2**21
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, or don't."""
        if self._mood.down:
            return web.json_response({"kind": "Status", "code": 503, "message": "down"}, status=503)
        if request.method in _WRITES and self._mood.busy > 0 and "leases" not in request.path:
            self._mood.busy -= 1
            return web.json_response(
                {"kind": "Status", "code": 429, "reason": "TooManyRequests"},
                status=429,
                headers={"Retry-After": "1"},
            )
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        for setting in (await self._configuration.auth_settings()).values():
            headers["Authorization"] = setting["value"]
        answer = await self._session.request(
            request.method,
            self._configuration.host + request.path_qs,
            headers=headers,
            data=await request.read() or None,  # an empty body would get a type
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with answer:
            if "watch" in request.query and answer.status == 200:
                return await self._watch(request, answer)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            kept.pop("Content-Encoding", None)
            return web.Response(body=await answer.read(), status=answer.status, headers=kept)

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._mood.watches.add(lines)
        reader = asyncio.create_task(self._read(answer, lines))
        try:
            while (line := await lines.get()) is not None:
                await response.write(line)
        finally:
            reader.cancel()
            self._mood.watches.discard(lines)
        return response

    async def _read(self, answer: aiohttp.ClientResponse, lines: asyncio.Queue[bytes | None]) -> None:
        async for line in answer.content:
            if not self._mood.deaf:
                lines.put_nowait(line)
        lines.put_nowait(None)


def _error(code: int) -> bytes:
    status = {"kind": "Status", "code": code, "message": "made by a test", "reason": "Test"}
    return json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"


def _orders(mood: Mood) -> dict[str, Callable[[int], None]]:
    def set_to(name: str, value: object) -> Callable[[int], None]:
        return lambda number: setattr(mood, name, value)

    def end(code: int) -> None:
        mood.tell(_error(code))
        mood.tell(None)

    return {
        "cut": lambda number: mood.tell(None),
        "expire": lambda number: end(410),
        "fail": end,
        "deaf": set_to("deaf", True),
        "hear": set_to("deaf", False),
        "down": set_to("down", True),
        "up": set_to("down", False),
        "busy": lambda number: setattr(mood, "busy", number),
    }


def _say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(kubeconfig: str) -> None:
    """Serve until standard input ends."""
    configuration = Configuration()
    await config.load_kube_config(kubeconfig, client_configuration=configuration)
    mood = Mood()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", Proxy(configuration, mood).handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
    await site.start()
    _say(runner.addresses[0][1])
    orders = _orders(mood)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, _, number = line.strip().partition(" ")
        orders[order](int(number or 0))
        _say("ok")
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
