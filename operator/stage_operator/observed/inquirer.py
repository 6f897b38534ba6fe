"""Asks what pods' objects don't say: the cluster's events why a pod doesn't start, and pods about themselves.

Few at a time, each with a deadline, and only by the replica that acts. What is answered is kept with the pod, and the
stage that it is about gets a turn. Who doesn't answer is told of as unreachable, and no worse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote

from stage_api import names
from stage_api.pod_facts import PodFacts
from stage_api.startup_progress import StartProgress
from stage_operator.client.kube import EVENTS, Kube, KubeError, Refused
from stage_operator.client.pod_http import PodHttp, Unreachable
from stage_operator.observed.cache import Cache
from stage_operator.observed.questions import Question, Schedule, port
from stage_operator.values import Manifest, PodEvent, Said, StageKey

LOOK_S: Final = 2.0
"""Between two looks at who is to be asked."""
MOST: Final = 64
"""Questions between two looks."""
AT_ONCE: Final = 16
EVENTS_S: Final = 5.0
"""How long the cluster's events are waited for."""
MOST_EVENTS: Final = 20
FORBIDDEN_S: Final = 600.0
"""How long nobody asks again for events that may not be read."""
PATH_MODELS: Final = "/v1/models"

log = logging.getLogger(__name__)


class Inquirer:
    """Asks about the pods of all stages."""

    def __init__(
        self,
        kube: Kube,
        pods: PodHttp,
        cache: Cache,
        *,
        may_act: Callable[[], bool],
        on_news: Callable[[Iterable[StageKey]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._pods = pods
        self._cache = cache
        self._may_act = may_act
        self._on_news = on_news
        self._clock = clock
        self._schedule = Schedule()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._forbidden_until = 0.0

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                if self._may_act():
                    await self.round()
            except Exception:  # whatever an answer holds, who only tells must not end who acts
                log.exception("pods could not be asked")
            await asyncio.sleep(LOOK_S)

    async def round(self) -> None:
        """Ask what is due."""
        due = self._schedule.due(self._cache.pods(), self._clock(), MOST)
        await asyncio.gather(*(self._ask(what, pod) for what, pod in due))

    async def _ask(self, what: Question, pod: Manifest) -> None:
        async with self._turns:
            said = await (self._events_of(pod) if what is Question.STUCK else self._answer_of(what, pod))
        answered = (
            said is not None
            and not said.unreachable
            and (what is not Question.FACTS or said.facts is not None)
        )
        self._schedule.asked(pod, what, self._clock(), answered=answered)
        if said is not None:
            self._on_news(self._cache.tell(pod, said))

    async def _events_of(self, pod: Manifest) -> Said | None:
        """The latest event about a pod; None if that can't be known."""
        if self._clock() < self._forbidden_until:
            return None
        metadata = pod["metadata"]
        selector = quote(f"regarding.uid={metadata['uid']}", safe="")
        path = f"{EVENTS.path(metadata['namespace'])}?fieldSelector={selector}&limit={MOST_EVENTS}"
        try:
            found = await self._kube.fetch(path, timeout_s=EVENTS_S, about=EVENTS.plural)
        except Refused as error:
            self._forbidden_until = self._clock() + FORBIDDEN_S
            log.warning("events of pods can't be read", extra={"error": error.message})
            return None
        except KubeError:
            return None
        return Said(event=latest(found.get("items") or ()))

    async def _answer_of(self, what: Question, pod: Manifest) -> Said:
        address, at = pod["status"]["podIP"], port(pod)
        path = PATH_MODELS if what is Question.FACTS else names.PATH_STARTUP
        try:
            body = await self._pods.get(address, at, path)
        except Unreachable as error:
            return Said(unreachable=str(error))
        if what is Question.FACTS:
            return Said(facts=PodFacts.of(body))
        return Said(start=StartProgress.of(body))


def latest(events: Iterable[Manifest]) -> PodEvent | None:
    """The event that was seen last."""
    newest = max(events, key=_seen_at, default=None)
    if newest is None:
        return None
    return PodEvent(
        is_warning=newest.get("type") == "Warning",
        reason=str(newest.get("reason") or "Unknown"),
        note=str(newest.get("note") or newest.get("message") or "no more is known"),
    )


def _seen_at(event: Manifest) -> str:
    """When, as text that sorts by time to the second."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return max((str(at)[:19] for at in times if at), default="")
