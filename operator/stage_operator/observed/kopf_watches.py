"""Stages, pods and nodes are watched by kopf, of which nothing else is used: no finalizers, no timers, no peering.

kopf runs in a thread with a loop of its own. There it may end on any error within a stream, and when it ends it
cancels every task of its loop that is younger than itself; here it is entered again, and nobody else's tasks are in
its reach. Events cross over in batches. That a watch began anew is seen in the requests it makes: kopf tells of what
is there after a gap, and not of what is gone.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import kopf
from kubernetes.aio.client.configuration import Configuration

from stage_api import names
from stage_operator.observed.cache import NODE, POD, STAGE
from stage_operator.observed.resync import OURS
from stage_operator.observed.watches import GivingUp, OnEvent
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import FIELD_MANAGER, Manifest

WATCH_S: Final = 90
"""How long one watch request lasts. It is asked for again from where it was."""
INACTIVE_S: Final = 70.0
STOP_S: Final = 5.0
"""How long is waited for kopf to end."""
_ASK_AGAIN_S: Final = 0.5
GONE: Final = 410
"""What happened since is forgotten: an answer like others, after which a watch begins anew."""
_BATCH: Final = 500  # events handled before others get their turn
_KINDS: Final = {names.PLURAL: STAGE, "pods": POD, "nodes": NODE}

log = logging.getLogger(__name__)


class Restarts:
    """When ended watches are begun again: after 1 to 30 s, but not 10 times in 10 minutes."""

    MOST: Final = 10
    WITHIN_S: Final = 600.0
    LONGEST_S: Final = 30.0

    def __init__(self) -> None:
        self._ends: deque[float] = deque()

    def wait_s(self, now: float) -> float | None:
        """They have ended once more; how long to wait, or None to give up."""
        self._ends.append(now)
        while self._ends[0] <= now - self.WITHIN_S:
            self._ends.popleft()
        if len(self._ends) >= self.MOST:
            return None
        return float(min(2 ** (len(self._ends) - 1), self.LONGEST_S))


@dataclass(frozen=True, slots=True)
class Scope:
    """Where is watched, and whether nodes are."""

    namespaces: tuple[str, ...] = ()
    """Empty for all."""
    nodes: bool = True


class KopfWatches:
    """Watches stages, their pods and perhaps the nodes. All calls come in the loop in which it was made."""

    def __init__(
        self,
        configuration: Configuration,
        metrics: Metrics,
        *,
        scope: Scope,
        on_event: OnEvent,
        on_list: Callable[[str], None],
        reachable: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_list` gets the kind whose watch began anew.

        `reachable` returns once the API server answers and knows of stages: what ends while it doesn't says nothing,
        and kopf would never watch what it doesn't find at its start.
        """
        self._configuration = configuration
        self._metrics = metrics
        self._scope = scope
        self._on_event = on_event
        self._on_list = on_list
        self._reachable = reachable
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[str, str | None, Manifest]] = deque()
        self._poked = False
        self._moved_at = time.monotonic()
        self._waits = False
        self._stop: Callable[[], None] | None = None
        self._listed: set[str] = set()
        self._failing: set[str] = set()

    def quiet_s(self) -> float:
        """How long nothing was asked or heard, though there was somebody to ask."""
        return 0.0 if self._waits else time.monotonic() - self._moved_at

    async def run(self) -> None:
        """Watch until cancelled. GivingUp if it ended too often."""
        restarts = Restarts()
        while True:
            self._waits = True
            await self._reachable()
            self._moved_at = time.monotonic()
            self._waits = False
            error = await self._once()
            for kind in self._listed:
                self._on_list(kind)  # nothing is heard until they are begun again
            reason = "ended" if error is None else type(error).__name__
            self._metrics.watch_restarted("all", reason)
            wait_s = restarts.wait_s(time.monotonic())
            log.warning("the watches ended", extra={"error": str(error), "again_in_s": wait_s})
            if wait_s is None:
                raise GivingUp(f"the watches ended {Restarts.MOST} times; the last time by {error}")
            await asyncio.sleep(wait_s)

    async def _once(self) -> BaseException | None:
        """Run kopf until it ends, and say by what."""
        ended: Future[BaseException | None] = Future()
        thread = threading.Thread(target=self._thread, args=(ended,), name="watches", daemon=True)
        thread.start()
        try:
            return await asyncio.wrap_future(ended)
        finally:
            if (stop := self._stop) is not None:
                stop()
            await asyncio.to_thread(thread.join, STOP_S)

    # What follows runs in kopf's thread.

    def _thread(self, ended: Future[BaseException | None]) -> None:
        error: BaseException | None = None
        ended.set_running_or_notify_cancel()  # it can't be cancelled from here on, only told to stop
        try:
            asyncio.run(self._kopf())
        except BaseException as caught:  # noqa: BLE001 - whatever it is, it is the other loop's to judge
            error = caught
        self._stop = None
        ended.set_result(error)

    async def _kopf(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: _quietly(loop, stop.set)
        where = {"namespaces": self._scope.namespaces} if self._scope.namespaces else {"clusterwide": True}
        tasks = await kopf.spawn_tasks(
            registry=self._registry(), settings=_settings(), standalone=True, stop_flag=stop, **where
        )
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await _cancel_all()
        for task in ended:
            task.result()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return kopf.AiohttpSession(
                server=self._configuration.host, aiohttp_session=_session(self._configuration, self._observe)
            )

        def pass_on(kind: str) -> Callable[..., Any]:
            async def handler(event: Any, **_: Any) -> None:
                self._deliver(kind, event["type"], event["object"])

            return handler

        kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, id="stage", registry=registry)(pass_on(STAGE))
        kopf.on.event("", "v1", "pods", id="pod", registry=registry)(pass_on(POD))
        if self._scope.nodes:
            kopf.on.event("", "v1", "nodes", id="node", registry=registry)(pass_on(NODE))
        return registry

    async def _observe(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Every request of the watches passes here."""
        kind = _KINDS.get(request.url.name)
        verb = "watch" if "watch" in request.url.query else "list"
        began = self._moved_at = time.monotonic()
        name, code = request.url.name if kind else "discovery", 0
        try:
            response = await handler(request)
            code = response.status
        except asyncio.CancelledError:
            raise  # kopf is told to end: nobody failed to answer
        except Exception:
            self._note(name, code)
            raise
        finally:
            self._moved_at = time.monotonic()
            self._metrics.request(verb, name, code, self._moved_at - began)
        self._note(name, code)
        if kind is not None and verb == "list" and code == 200 and "continue" not in request.url.query:
            _quietly(self._loop, self._begun, kind)
        return response

    def _note(self, name: str, code: int) -> None:
        """Log when requests begin to fail, and when they work again; kopf's own log of each is not shown."""
        works = 200 <= code < 300 or code == GONE
        if works and name in self._failing:
            self._failing.discard(name)
            log.info("what is watched is heard of again", extra={"resource": name})
        elif not works and name not in self._failing:
            self._failing.add(name)
            log.warning("what is watched is not heard of", extra={"resource": name, "code": code})

    def _deliver(self, kind: str, type_: str | None, obj: Manifest) -> None:
        self._moved_at = time.monotonic()
        self._inbox.append((kind, type_, obj))
        if not self._poked:
            self._poked = True
            _quietly(self._loop, self._drain)

    # What follows runs in the operator's own loop.

    def _drain(self) -> None:
        self._poked = False
        for _ in range(_BATCH):
            if not self._inbox:
                return
            self._on_event(*self._inbox.popleft())
        self._poked = True
        self._loop.call_soon(self._drain)

    def _begun(self, kind: str) -> None:
        if kind in self._listed:
            self._metrics.watch_restarted(kind, "gap")
        self._listed.add(kind)
        self._on_list(kind)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # needs rights to namespaces and definitions
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 2)  # the last is how late its return is noticed
    settings.queueing.idle_timeout = 1.0  # of a task that each object has for itself; its end waits for them
    settings.watching.server_timeout = WATCH_S
    settings.watching.inactivity_timeout = INACTIVE_S
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["pods"] = OURS
    # Never written, since nothing here asks for it; ours all the same.
    settings.persistence.finalizer = f"{names.GROUP}/unused"
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.persistence.progress_storage = _NoProgress()
    return settings


class _NoDifferences(kopf.DiffBaseStorage):
    """kopf would copy each object several times to learn what changed in it, which nobody here asks."""

    def build(self, **_: Any) -> Any:
        """Nothing."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Nothing is."""


class _NoProgress(kopf.ProgressStorage):
    """And once more to leave out its own notes, of which there are none."""

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Nothing is."""

    def purge(self, **_: Any) -> None:
        """There is nothing."""

    def touch(self, **_: Any) -> None:
        """Nothing changes."""

    def clear(self, *, essence: Any) -> Any:
        """The same."""
        return essence


def _session(configuration: Configuration, observe: Any) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE

    async def authorise(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """With the present token: a pod's is renewed every now and then."""
        for setting in (await configuration.auth_settings()).values():
            request.headers["Authorization"] = str(setting["value"])
        return await handler(request)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context),
        headers={"User-Agent": f"{FIELD_MANAGER}-watches"},
        middlewares=(observe, authorise),
        proxy=configuration.proxy,
    )


async def _cancel_all() -> None:
    """End every other task of this loop. kopf would ask once, which a watch may overhear, and wait for ever."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    until = time.monotonic() + STOP_S
    while left and time.monotonic() < until:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_ASK_AGAIN_S)


def _quietly(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Have another loop call it; one that is closed has no use for it any more."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
