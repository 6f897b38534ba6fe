"""Sets the cache right by lists: at start, whenever a watch began anew, and every now and then.

What a watch doesn't tell after a gap, above all deletions, is found here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

from stage_api import names
from stage_operator.client import discovery
from stage_operator.client.kube import NODES, PODS, STAGES, Kube, KubeError, Resource
from stage_operator.observed import cache as caches
from stage_operator.observed import slim
from stage_operator.observed.cache import NODE, POD, STAGE, Cache
from stage_operator.settings import Settings
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Api, Manifest, StageKey

SWEEP_EACH: Final = 12
"""After so many resyncs every stage is looked at, changed or not."""
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_SPREAD: Final = 0.1

WATCHED: Final = {STAGE: STAGES, POD: PODS, NODE: NODES}
_SLIM: Final = {STAGE: slim.slim_stage, POD: slim.slim_pod, NODE: slim.slim_node}
OURS: Final = names.LABEL_STAGE
"""Selects the pods and children of all stages."""

log = logging.getLogger(__name__)


class Resync:
    """Lists what there is, and keeps what the API server serves up to date."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        metrics: Metrics,
        settings: Settings,
        *,
        api: Api,
        on_news: Callable[[Iterable[StageKey]], None],
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._metrics = metrics
        self._namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
        self._every_s = settings.resync_s
        self._on_news = on_news
        self._versions: dict[tuple[str, str | None], int] = {}
        self._asked: set[str] = set()
        self._wanted = asyncio.Event()
        self._rounds = 0
        self.api = api
        self.problem: str | None = "nothing was listed yet"
        """Why the cache isn't what it should be; None if it is."""

    def ask(self, kind: str) -> None:
        """List a watched kind soon: its watch had a gap."""
        if kind in self._watched():
            self._asked.add(kind)
            self._wanted.set()

    async def everything(self) -> None:
        """List all that there is. KubeError if that can't be done."""
        for kind in self._watched():
            await self._list(kind, WATCHED[kind], _SLIM[kind])
        for resource in discovery.children(self.api):
            await self._list(caches.kind_of(resource.api_version, resource.kind), resource, slim.slim_child)
        self._cache.caught_up()
        self.problem = None

    def listed_at(self, resource: Resource, namespace: str | None) -> int | None:
        """At which version children were listed last; None if they never were."""
        return self._versions.get((caches.kind_of(resource.api_version, resource.kind), namespace))

    async def list_children(self, resource: Resource, namespace: str | None) -> int:
        """List the children of a kind and place anew; at which version that was. KubeError if it can't be done."""
        kind = caches.kind_of(resource.api_version, resource.kind)
        await self._list(kind, resource, slim.slim_child, namespace)
        return self._versions[kind, namespace]

    async def run(self) -> None:
        """Keep the cache right until cancelled; everything was listed once before."""
        failures = 0
        due = self._clock() + self._interval_s()
        while True:
            await self._wait(due)
            try:
                if self._clock() >= due:
                    await self._round()
                    due = self._clock() + self._interval_s()
                else:
                    await self._answer()
            except KubeError as error:
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                self.problem = error.message
                log.warning("a list failed", extra={"error": error.message, "again_in_s": wait_s})
                await asyncio.sleep(wait_s)
            else:
                failures = 0
                self.problem = None

    async def _round(self) -> None:
        self.api = await discovery.discover(self._kube, nodes=self.api.nodes)
        self._asked.clear()
        await self.everything()
        self._rounds += 1
        if self._rounds % SWEEP_EACH == 0:
            self._on_news(self._cache.keys())

    async def _answer(self) -> None:
        """List what was asked for. What fails is asked for again."""
        for kind in sorted(self._asked):
            self._asked.discard(kind)
            try:
                await self._list(kind, WATCHED[kind], _SLIM[kind])
            except KubeError:
                self.ask(kind)
                raise

    async def _wait(self, due: float) -> None:
        if not self._asked:
            self._wanted.clear()
            try:
                async with asyncio.timeout(max(0.0, due - self._clock())):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _list(
        self, kind: str, resource: Resource, slim: Callable[[Manifest], Manifest], *only: str | None
    ) -> None:
        began = self._clock()
        selector = None if kind in (STAGE, NODE) else OURS
        ghosts = 0
        for namespace in only or (self._namespaces if resource.namespaced else (None,)):
            listing = await self._kube.list(resource, namespace, selector=selector, slim=slim)
            news, gone = self._cache.replace(kind, namespace, listing.items, listing.version)
            self._versions[kind, namespace] = listing.version
            ghosts += gone
            self._on_news(news)
        self._metrics.resynced(resource.plural, ghosts, self._clock() - began)
        if ghosts:
            log.warning("objects were gone without notice", extra={"kind": kind, "count": ghosts})

    def _watched(self) -> tuple[str, ...]:
        # Nodes first: a pod on a node that isn't known is a question to the API server.
        return (NODE, STAGE, POD) if self.api.nodes else (STAGE, POD)

    def _interval_s(self) -> float:
        return self._every_s * random.uniform(1 - _SPREAD, 1 + _SPREAD)

    @staticmethod
    def _clock() -> float:
        return time.monotonic()
