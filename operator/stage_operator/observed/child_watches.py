"""Watches the children of stages, so that one that somebody deleted or changed is put right at once.

kopf has no part in it: it would list them all once more and keep a task and a memory for each. Here a watch goes on
from the list that the cache was set right by, so that nothing is held of a child but what the cache holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from stage_operator.client import discovery
from stage_operator.client.kube import Kube, KubeError, Resource
from stage_operator.observed.cache import kind_of, version
from stage_operator.observed.resync import OURS, RETRY_S, Resync
from stage_operator.observed.watches import OnEvent
from stage_operator.telemetry.metrics import Metrics

WATCH_S: Final = 60
"""How long one watch request lasts. A connection that died without a word is noticed by its end."""
LOOK_S: Final = 30.0
"""How soon kinds are watched that the cluster got meanwhile, once that is known."""
PAUSE_S: Final = 1.0
"""Between two requests, so that a server that ends each at once isn't asked without a break."""
MOST_KINDS: Final = len(discovery.CHILD_KINDS) + 2

log = logging.getLogger(__name__)


class ChildWatches:
    """One watch for each kind of children, and for each namespace where stages are kept."""

    def __init__(
        self,
        kube: Kube,
        resync: Resync,
        metrics: Metrics,
        *,
        namespaces: tuple[str, ...],
        on_event: OnEvent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._resync = resync
        self._metrics = metrics
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._on_event = on_event
        self._clock = clock
        self._moved_at = clock()

    def quiet_s(self) -> float:
        """How long nothing was asked or heard. Each watch is asked for anew after a minute."""
        return self._clock() - self._moved_at

    async def run(self) -> None:
        """Watch until cancelled."""
        watched: dict[tuple[Resource, str | None], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                kinds = discovery.children(self._resync.api)
                wanted = {(kind, namespace) for kind in kinds for namespace in self._namespaces}
                for place in watched.keys() - wanted:
                    watched.pop(place).cancel()
                for place in wanted - watched.keys():
                    watched[place] = tasks.create_task(self._follow(*place))
                await asyncio.sleep(LOOK_S)

    async def _follow(self, resource: Resource, namespace: str | None) -> None:
        kind = kind_of(resource.api_version, resource.kind)
        at = self._resync.listed_at(resource, namespace)
        failures = 0
        while True:
            wait_s = PAUSE_S
            self._moved_at = self._clock()
            try:
                if at is None:
                    at = await self._resync.list_children(resource, namespace)
                told = self._kube.watch(resource, namespace, selector=OURS, version=at, lasts_s=WATCH_S)
                async for type_, obj in told:
                    at = version(obj)
                    self._moved_at = self._clock()
                    if type_ != "BOOKMARK":
                        self._on_event(kind, type_, obj)
                failures = 0
            except KubeError as error:
                if error.code == 410:  # what happened since is forgotten
                    self._metrics.watch_restarted(kind, "gap")
                    at = None
                elif failures == 0:
                    log.warning("a kind is not watched", extra={"kind": kind, "error": error.message})
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
            await asyncio.sleep(wait_s)
