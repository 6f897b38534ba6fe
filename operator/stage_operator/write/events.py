"""What people are told of in events: each thing once, and then as a series that is brought up to date now and then.

`Series` decides with the clock passed in. Events wait in a line of their own and hold nothing up; one that can't be
stored is logged and forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stage_operator.client.kube import EVENTS, Kube, KubeError, Missing
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import FIELD_MANAGER, Emit, Manifest, StageKey

SERIES_S: Final = 600.0
"""Something that is told again within so long continues its series."""
REFRESH_S: Final = 60.0
"""How often a series that goes on is written."""
_NOTE_CHARS: Final = 1024  # the API's limits
_ACTION: Final = "Reconcile"
_MANY: Final = 4096  # series that are remembered
_LONGEST_LINE: Final = 1000

log = logging.getLogger(__name__)

Mark = tuple[str, ...]
"""What makes two events the same."""


@dataclass(frozen=True, slots=True)
class New:
    """It was not told lately."""


@dataclass(frozen=True, slots=True)
class Again:
    """It goes on: it was told so often."""

    count: int


@dataclass(slots=True)
class _Entry:
    count: int
    seen_at: float
    told_at: float


class Series:
    """Which events are told again, and how often."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Mark, _Entry] = OrderedDict()

    def see(self, mark: Mark, now: float) -> New | Again | None:
        """What to store about one more of them; None for nothing yet."""
        entry = self._entries.get(mark)
        if entry is None or now - entry.seen_at > SERIES_S:
            self._entries[mark] = _Entry(1, now, now)
            self._entries.move_to_end(mark)
            if len(self._entries) > _MANY:
                self._entries.popitem(last=False)
            return New()
        entry.count += 1
        entry.seen_at = now
        self._entries.move_to_end(mark)
        if now - entry.told_at < REFRESH_S:
            return None
        entry.told_at = now
        return Again(entry.count)

    def forget(self, mark: Mark) -> None:
        """It is new when it comes next."""
        self._entries.pop(mark, None)


class Events:
    """Stores events about stages and their pods."""

    def __init__(
        self,
        kube: Kube,
        identity: str,
        metrics: Metrics,
        may_act: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._identity = identity
        self._metrics = metrics
        self._may_act = may_act
        self._clock = clock
        self._series = Series()
        self._names: OrderedDict[Mark, str] = OrderedDict()
        self._line: asyncio.Queue[tuple[StageKey, Emit]] = asyncio.Queue(_LONGEST_LINE)

    def tell(self, key: StageKey, event: Emit) -> None:
        """Soon. One too many is dropped, since those before it say enough."""
        try:
            self._line.put_nowait((key, event))
        except asyncio.QueueFull:
            log.warning("too many events; one was dropped", extra={"reason": event.reason})

    async def run(self) -> None:
        """Store events until cancelled."""
        while True:
            key, event = await self._line.get()
            if self._may_act():
                await self._store(key, event)

    async def _store(self, key: StageKey, event: Emit) -> None:
        about = _reference(key, event)
        mark = (about.get("uid") or about["name"], event.type, event.reason, event.message)
        try:
            match self._series.see(mark, self._clock()):
                case New():
                    await self._create(key, event, about, mark)
                case Again(count):
                    await self._continue(key, mark, count)
        except Missing:
            self._series.forget(mark)  # the old one has run out, or the namespace is going
        except KubeError as error:
            log.warning("an event was not stored", extra={"reason": event.reason, "error": error.message})

    async def _create(self, key: StageKey, event: Emit, about: Manifest, mark: Mark) -> None:
        at = datetime.now(UTC)
        digest = hashlib.sha256("\n".join((*mark, at.isoformat())).encode()).hexdigest()[:16]
        name = f"{about['name']}.{digest}"
        await self._kube.create(
            {
                "apiVersion": EVENTS.api_version,
                "kind": EVENTS.kind,
                "metadata": {"name": name, "namespace": key.namespace},
                "eventTime": _micro(at),
                "type": event.type,
                "reason": event.reason,
                "note": event.message[:_NOTE_CHARS],
                "action": _ACTION,
                "regarding": about,
                "reportingController": FIELD_MANAGER,
                "reportingInstance": self._identity[:128],
            }
        )
        self._metrics.told(event.type, event.reason)
        self._names[mark] = name
        if len(self._names) > _MANY:
            self._names.popitem(last=False)

    async def _continue(self, key: StageKey, mark: Mark, count: int) -> None:
        if (name := self._names.get(mark)) is None:
            return
        series = {"count": count, "lastObservedTime": _micro(datetime.now(UTC))}
        await self._kube.merge(EVENTS, key.namespace, name, {"series": series})


def _reference(key: StageKey, event: Emit) -> Manifest:
    """The object that an event is about, as events name it."""
    given = event.regarding
    metadata: Any = given.get("metadata") or given
    about = {
        "apiVersion": given.get("apiVersion"),
        "kind": given.get("kind"),
        "namespace": metadata.get("namespace") or key.namespace,
        "name": metadata.get("name") or key.name,
        "uid": metadata.get("uid"),
    }
    return {name: value for name, value in about.items() if value is not None}


def _micro(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
