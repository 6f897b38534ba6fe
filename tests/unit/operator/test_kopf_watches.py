"""The watches of kopf outlive what ends them, and say once that they hear nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from stage_api import names
from stage_operator.client import discovery
from stage_operator.client.kube import STAGES, Kube, KubeError
from stage_operator.client.rate import Bucket
from stage_operator.observed.cache import STAGE
from stage_operator.observed.kopf_watches import KopfWatches, Scope
from stage_operator.telemetry.metrics import Metrics

PATIENCE_S = 60.0


class Server:
    """An API server of which only the lists and watches of stages and pods are asked."""

    def __init__(self) -> None:
        self.defined = asyncio.Event()
        self.defined.set()
        self.deleted = asyncio.Event()
        self.begun: Counter[str] = Counter()
        """Watches that were begun, by plural."""
        self.refusal: int | None = None
        """What lists of pods are answered with, if not with pods."""
        self.refused = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api", self._say({"versions": ["v1"]}))
        app.router.add_get("/apis", self._groups)
        app.router.add_get(
            "/api/v1",
            self._say({"resources": [_resource("pods", "Pod"), _resource("namespaces", "Namespace")]}),
        )
        app.router.add_get(f"/apis/{names.API_VERSION}", self._stages_of_discovery)
        app.router.add_get("/api/v1/pods", self._pods)
        app.router.add_get(f"/apis/{names.API_VERSION}/{names.PLURAL}", self._stages)
        return app

    @staticmethod
    def _say(answer: dict[str, Any]) -> Any:
        async def handler(_: web.Request) -> web.Response:
            return web.json_response(answer)

        return handler

    async def _groups(self, _: web.Request) -> web.Response:
        version = {"groupVersion": names.API_VERSION, "version": names.VERSION}
        group = {"name": names.GROUP, "versions": [version], "preferredVersion": version}
        return web.json_response({"groups": [group] if self.defined.is_set() else []})

    async def _stages_of_discovery(self, _: web.Request) -> web.Response:
        if not self.defined.is_set():
            return _missing()
        return web.json_response({"resources": [_resource(names.PLURAL, names.KIND)]})

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            self.refused += 1
            return web.json_response({"kind": "Status", "code": self.refusal}, status=self.refusal)
        return await self._listed_or_watched(request, "pods", asyncio.Event())

    async def _stages(self, request: web.Request) -> web.StreamResponse:
        if not self.defined.is_set():
            return _missing()
        return await self._listed_or_watched(request, names.PLURAL, self.deleted)

    async def _listed_or_watched(
        self, request: web.Request, plural: str, until: asyncio.Event
    ) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        self.begun[plural] += 1
        await until.wait()  # a server doesn't answer at all before it has something to tell
        return web.Response()


def _resource(plural: str, kind: str) -> dict[str, Any]:
    return {
        "name": plural,
        "singularName": "",
        "kind": kind,
        "namespaced": True,
        "verbs": ["get", "list", "watch", "patch"],
    }


def _missing() -> web.Response:
    return web.json_response({"kind": "Status", "code": 404, "message": "404 page not found"}, status=404)


class House:
    """The watches of such a server, for as long as a test takes."""

    def __init__(self) -> None:
        self.api = Server()
        self.listed: list[str] = []
        self.watches: KopfWatches

    def live(self, work: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(self._live(work))

    async def _live(self, work: Callable[[], Awaitable[None]]) -> None:
        async with TestServer(self.api.app()) as server:
            configuration = Configuration()
            configuration.host = str(server.make_url("")).rstrip("/")
            kube = Kube(configuration, Metrics("test"), Bucket(100, 100, 0))

            async def reachable() -> None:
                while True:
                    try:
                        return await discovery.require(kube, STAGES, timeout_s=5)
                    except KubeError:
                        await asyncio.sleep(0.05)

            self.watches = KopfWatches(
                configuration,
                Metrics("test"),
                scope=Scope(nodes=False),
                on_event=lambda *_: None,
                on_list=self.listed.append,
                reachable=reachable,
            )
            running = asyncio.create_task(self.watches.run())
            async with asyncio.timeout(PATIENCE_S):
                await work()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kube.close()


def test_stages_are_watched_again_once_their_definition_is_back() -> None:
    house = House()

    async def work() -> None:
        api = house.api
        await _until(lambda: api.begun.keys() == {"pods", names.PLURAL})
        before = house.listed.count(STAGE)
        api.defined.clear()
        api.deleted.set()
        await _until(lambda: house.listed.count(STAGE) > before)  # it is known that they are heard no more
        assert house.watches.quiet_s() < PATIENCE_S
        api.deleted.clear()
        again = api.begun.copy()
        api.defined.set()
        await _until(lambda: all(api.begun[plural] > again[plural] for plural in again))

    house.live(work)


@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_that_nothing_is_heard_of_pods_is_logged_once_and_once_that_it_is_again(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()

    async def work() -> None:
        house.api.refusal = code
        await _until(lambda: house.api.refused > 2)
        house.api.refusal = None
        await _until(lambda: "pods" in house.api.begun)

    with caplog.at_level(logging.INFO, "stage_operator"):
        house.live(work)
    told = [record for record in caplog.records if getattr(record, "resource", None) == "pods"]
    assert [record.levelname for record in told] == ["WARNING", "INFO"]
    assert getattr(told[0], "code", None) == code


async def _until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - a server that is asked tells nobody
        await asyncio.sleep(0.02)
