"""The composition root: the only module that knows every part of the operator, and the order in which they live."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from stage_operator.client import discovery
from stage_operator.client.connection import configure
from stage_operator.client.definition import check_definition
from stage_operator.client.kube import STAGES, Kube, KubeError
from stage_operator.client.own_account import own_account
from stage_operator.client.pod_http import PodHttp
from stage_operator.client.rate import Bucket
from stage_operator.loop.lease import Always, Leadership
from stage_operator.loop.queue import Queue
from stage_operator.loop.reconcile import Planner, Reconciler, Tools
from stage_operator.observed.cache import POD, STAGE, Cache
from stage_operator.observed.child_watches import MOST_KINDS, ChildWatches
from stage_operator.observed.definition_watch import DefinitionWatch
from stage_operator.observed.inquirer import Inquirer
from stage_operator.observed.kopf_watches import KopfWatches, Scope
from stage_operator.observed.own_clock import OwnClock
from stage_operator.observed.resync import RETRY_S, Resync
from stage_operator.observed.watches import Watches
from stage_operator.settings import Settings, WatchNodes
from stage_operator.telemetry.health import HealthServer, Heart, Pulse
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Manifest, StageKey
from stage_operator.write.apply import Applier
from stage_operator.write.events import Events
from stage_operator.write.status import StatusWriter

GRACE_S: Final = 3.0
"""How long turns that run may take to end after SIGTERM."""

log = logging.getLogger(__name__)


class Operator:
    """One replica of the operator, from start to end."""

    def __init__(self, settings: Settings, planner: Planner, kube: Kube, metrics: Metrics) -> None:
        self._settings = settings
        self._kube = kube
        self._metrics = metrics
        own_clock = OwnClock()
        self._cache = Cache(own_clock)
        self._heart = Heart()
        self._lead: Leadership | Always = Always()
        if settings.lead:
            self._lead = Leadership(
                kube,
                settings.lease,
                on_gain=self._gained,
                on_loss=lambda why: self._queue.close(),
                owner=own_account(settings.lease.namespace),
            )
        self._definition = DefinitionWatch(kube, on_whole=lambda: self._queue.add(self._cache.keys()))
        self._pods = PodHttp()
        self._inquirer = Inquirer(
            kube, self._pods, self._cache, may_act=self._may_act, on_news=lambda keys: self._queue.add(keys)
        )
        self._events = Events(kube, settings.lease.identity, metrics, self._may_act)
        applier = Applier(kube, self._cache, metrics, self._may_act)
        writer = StatusWriter(kube, metrics, on_dropped=self._definition.look_soon)
        tools = Tools(kube, self._cache, writer, applier, self._events, metrics, own_clock)
        reconciler = Reconciler(
            tools, planner, settings.plan, api=lambda: self._require_resync().api, may_act=self._may_act
        )
        self._queue: Queue[StageKey] = Queue(reconciler.turn, workers=settings.workers)
        self._resync: Resync | None = None
        self._watches: Watches | None = None
        self._lacks: str | None = "it has just been started"
        metrics.watch(_Readings(self._cache, self._queue, self._heart, self._leads))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop. GivingUp if it can't be done."""
        health = HealthServer(pulse=self._pulse, missing=self.missing, metrics=self._metrics.text)
        port = await health.start(self._settings.port)
        log.info("listening", extra={"port": port})
        work = asyncio.create_task(self._work(), name="work")
        told = asyncio.create_task(stop.wait(), name="told to stop")
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            await self._queue.stop(GRACE_S)
            if work.done():
                work.result()
        finally:
            for task in (work, told):
                task.cancel()
            await asyncio.gather(work, told, return_exceptions=True)
            if isinstance(self._lead, Leadership):
                await self._lead.release()
            await self._pods.close()
            await health.stop()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heart.run())
            await self._sync()
            resync = self._require_resync()
            self._watches = self._made_watches(resync)
            tasks.create_task(self._watches.run())
            tasks.create_task(resync.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._inquirer.run())
            tasks.create_task(self._definition.run())
            if isinstance(self._lead, Leadership):
                tasks.create_task(self._lead.run())
            else:
                self._gained()

    def _made_watches(self, resync: Resync) -> Watches:
        namespaces = self._settings.namespaces
        return Watches(
            KopfWatches(
                self._kube.configuration,
                self._metrics,
                scope=Scope(namespaces, nodes=resync.api.nodes),
                on_event=self._take,
                on_list=self._listed,
                reachable=self._reachable,
            ),
            ChildWatches(self._kube, resync, self._metrics, namespaces=namespaces, on_event=self._take),
        )

    async def _sync(self) -> None:
        """Find out what there is. Tried again until it works; until then this replica isn't ready, and says why."""
        failures = 0
        while True:
            try:
                return await self._sync_once()
            except KubeError as error:
                self._lacks = error.message
            wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
            failures += 1
            log.warning("not ready yet", extra={"why": self._lacks, "again_in_s": wait_s})
            await asyncio.sleep(wait_s)

    async def _sync_once(self) -> None:
        await check_definition(self._kube)
        nodes = self._settings.watch_nodes is not WatchNodes.NO
        if self._settings.watch_nodes is WatchNodes.AUTO:
            nodes = await discovery.nodes_allowed(self._kube)
        api = await discovery.discover(self._kube, nodes=nodes)
        resync = Resync(
            self._kube,
            self._cache,
            self._metrics,
            self._settings,
            api=api,
            on_news=self._queue.add,
        )
        await resync.everything()
        self._resync = resync
        self._lacks = None
        log.info("synced", extra={"objects": self._cache.sizes(), "api": str(api)})

    async def _reachable(self) -> None:
        """Return once the API server answers and serves stages; somebody may have deleted their definition."""
        failures = 0
        while True:
            try:
                await discovery.require(self._kube, STAGES, timeout_s=5)
            except KubeError as error:
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                log.warning("nothing to watch", extra={"error": error.message, "again_in_s": wait_s})
                await asyncio.sleep(wait_s)
            else:
                return

    def _take(self, kind: str, type_: str | None, obj: Manifest) -> None:
        """An event of a watch."""
        news = self._cache.drop(kind, obj) if type_ == "DELETED" else self._cache.put(kind, obj)
        if news:
            self._queue.add(news)

    def _listed(self, kind: str) -> None:
        """A watch began anew: the cache is set right by a list of our own, and nothing waits for an old failure."""
        self._require_resync().ask(kind)
        if kind == STAGE:
            self._definition.look_soon()
        if kind in (STAGE, POD):
            self._queue.hurry()

    def _gained(self) -> None:
        self._metrics.took_lead()
        self._queue.add(self._cache.keys())
        self._queue.open()

    def _leads(self) -> bool:
        return self._lead.leads

    def _may_act(self) -> bool:
        """Whether this replica leads, and nothing that it stores would be lost."""
        return self._leads() and self._definition.problem is None

    def missing(self) -> str | None:
        """What this replica lacks to be ready, as leader or as a warm standby."""
        return self._lacks if self._resync is None else self._definition.problem or self._resync.problem

    def _pulse(self) -> Pulse:
        return Pulse(
            lag_s=self._heart.lag_s,
            oldest_s=self._queue.oldest_s(),
            longest_s=self._queue.longest_s(),
            quiet_s=0.0 if self._watches is None else self._watches.quiet_s(),
        )

    def _require_resync(self) -> Resync:
        assert self._resync is not None, "nothing is decided before everything was listed"
        return self._resync


class _Readings:
    """The operator, as its gauges see it."""

    def __init__(self, cache: Cache, queue: Queue[StageKey], heart: Heart, leads: Callable[[], bool]) -> None:
        self._queue = queue
        self._heart = heart
        self.stages = cache.stages
        self.sizes = cache.sizes
        self.depth = queue.line.depth
        self.oldest_s = queue.oldest_s
        self.failing = queue.line.failing
        self.leads = leads

    def lag_s(self) -> float:
        """How late the event loop was last."""
        return self._heart.lag_s


async def serve(settings: Settings, planner: Planner) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    metrics = Metrics(version("omnistage"))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    kube = Kube(
        await configure(settings.kubeconfig, streams=MOST_KINDS * max(1, len(settings.namespaces))),
        metrics,
        Bucket(settings.qps, settings.burst, loop.time()),
    )
    try:
        await Operator(settings, planner, kube, metrics).run(stop)
    finally:
        await kube.close()
