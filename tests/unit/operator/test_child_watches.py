"""Children are heard of as they change: after a break from where it was, after a gap from a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from stage_operator.client.kube import KubeError, Listing, Missing, Resource, Trouble, resource_of
from stage_operator.observed.cache import Cache
from stage_operator.observed.child_watches import ChildWatches
from stage_operator.observed.resync import Resync
from stage_operator.settings import Settings
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Api, PlanSettings, StageKey
from support.reconcile_bench import child

SERVICES = resource_of("v1", "Service")
PATIENCE_S = 20
Event = tuple[str, dict[str, Any]]


def service(version: int, **metadata: Any) -> dict[str, Any]:
    made = child("Service", "s", spec={})
    return {**made, "metadata": {**made["metadata"], "uid": "u", "resourceVersion": str(version), **metadata}}


class Server:
    """Lists what it has, and tells the watchers of services what a test has written down for each."""

    def __init__(self, *scripts: tuple[Event | KubeError, ...]) -> None:
        self.scripts = list(scripts)
        self.listed = Listing((service(5),), 5)
        self.asked: list[int] = []

    async def list(self, resource: Resource, namespace: str | None, **_: Any) -> Listing:
        return self.listed if resource == SERVICES else Listing((), 5)

    async def watch(
        self, resource: Resource, namespace: str | None, *, version: int, **_: Any
    ) -> AsyncIterator[Event]:
        if resource == SERVICES:
            self.asked.append(version)
            for event in self.scripts.pop(0) if self.scripts else ():
                if isinstance(event, KubeError):
                    raise event
                yield event
            if self.scripts:
                return
        await asyncio.Event().wait()


class House:
    """A cache with its lists and the watches over it."""

    def __init__(self, server: Server) -> None:
        kube: Any = server
        self.cache = Cache()
        self.news: list[StageKey] = []
        metrics = Metrics("test")
        self.resync = Resync(
            kube,
            self.cache,
            metrics,
            Settings(plan=PlanSettings("image")),
            api=Api(nodes=False),
            on_news=self.news.extend,
        )
        self.watches = ChildWatches(kube, self.resync, metrics, namespaces=(), on_event=self.take)

    def take(self, kind: str, type_: str, obj: dict[str, Any]) -> None:
        self.news.extend(self.cache.drop(kind, obj) if type_ == "DELETED" else self.cache.put(kind, obj))

    @property
    def service(self) -> dict[str, Any] | None:
        return self.cache.child(service(0))


def live(server: Server, work: Callable[[House], Awaitable[None]]) -> House:
    """List, then watch for as long as `work` takes."""

    async def main() -> House:
        house = House(server)
        await house.resync.everything()
        house.news.clear()
        watching = asyncio.create_task(house.watches.run())
        async with asyncio.timeout(PATIENCE_S):
            await work(house)
        watching.cancel()
        return house

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a server that is asked tells nobody
        await asyncio.sleep(0.01)


def test_a_child_that_somebody_deleted_is_news_to_its_stage() -> None:
    server = Server((("DELETED", service(6)),))
    house = live(server, lambda house: until(lambda: bool(house.news)))
    assert house.news == [StageKey("ns", "s")]
    assert house.service is None
    assert server.asked == [5], "from the list that the cache was set right by"


def test_what_others_write_into_the_status_of_a_child_is_no_news() -> None:
    changed = service(7, labels={**service(7)["metadata"]["labels"], "a": "b"})
    server = Server((("MODIFIED", {**service(6), "status": {"x": 1}}), ("MODIFIED", changed)))
    house = live(server, lambda house: until(lambda: bool(house.news)))
    assert house.news == [StageKey("ns", "s")]
    assert house.service is not None
    assert "status" not in house.service


def test_a_watch_that_breaks_goes_on_from_the_last_version_it_heard_of() -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    server = Server((("BOOKMARK", bookmark), Trouble("reset")), (("DELETED", service(10)),))
    house = live(server, lambda house: until(lambda: bool(house.news)))
    assert server.asked == [5, 9]
    assert house.service is None


def test_after_a_gap_a_list_tells_what_is_gone() -> None:
    server = Server((Missing("too old", code=410),), ())

    async def work(house: House) -> None:
        server.listed = Listing((), 20)
        await until(lambda: bool(server.asked[1:]))

    house = live(server, work)
    assert server.asked == [5, 20]
    assert house.news == [StageKey("ns", "s")]
    assert house.service is None
