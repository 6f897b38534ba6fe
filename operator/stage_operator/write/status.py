"""The one writer of a stage's status: as seldom as will do, at once where evidence depends on it.

It runs inside the stage's turn, of which there is one at a time, so no two writes can cross. A write names the
version that it was decided on; if that isn't the present one, nothing is stored and the stage is decided on anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from stage_operator.client.kube import STAGES, Conflict, Kube, Missing
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Manifest, StageKey

INTERVAL_S: Final = 0.5
"""One write in so long, but for evidence."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The status shows what was wanted."""

    stage: Manifest | None = None
    """The stage as it is now, if it had to be written."""


@dataclass(frozen=True, slots=True)
class Later:
    """It was written a moment ago: come again then, by the clock, with what is true then."""

    at: float


@dataclass(frozen=True, slots=True)
class Stale:
    """The stage has changed since it was read."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The last write, by marks of statuses, which take a fraction of their room."""

    wanted: int
    stored: int
    at: float


def merge_patch(old: Any, new: Any) -> Any:
    """What a JSON merge patch must say to make `new` of `old`; an empty one if they are equal."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif old[name] != value:
            patch[name] = merge_patch(old[name], value)
    return patch


def lacks(stored: Any, wanted: Any) -> bool:
    """Whether a part of what was wanted is missing in what was stored, as if the schema didn't know of it."""
    if isinstance(wanted, dict):
        return not isinstance(stored, dict) or any(
            name not in stored or lacks(stored[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        return any(map(lacks, stored, wanted))
    return False


def _mark(status: Manifest) -> int:
    """Equal for equal statuses, and hardly ever for others."""
    return hash(json.dumps(status, sort_keys=True))


class StatusWriter:
    """Writes the statuses of all stages."""

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_dropped`: the API server dropped a part of what was written."""
        self._on_dropped = on_dropped
        self._kube = kube
        self._metrics = metrics
        self._clock = clock
        self._written: dict[StageKey, _Written] = {}

    async def write(self, stage: Manifest, wanted: Manifest, *, at_once: bool) -> Stored | Later | Stale:
        """See to it that the stage shows this status. Missing if the stage is gone."""
        key = StageKey.of(stage)
        shown = stage.get("status") or {}
        last = self._written.get(key)
        if shown == wanted or (last and last.wanted == _mark(wanted) and last.stored == _mark(shown)):
            return Stored()
        now = self._clock()
        if not at_once and last is not None and now < last.at + INTERVAL_S:
            return Later(last.at + INTERVAL_S)
        patch: Manifest = {
            "metadata": {"resourceVersion": stage["metadata"]["resourceVersion"]},
            "status": merge_patch(shown, wanted),
        }
        try:
            after = await self._kube.merge(STAGES, key.namespace, key.name, patch, subresource="status")
        except Conflict:
            self._metrics.status_written("conflict")
            return Stale()
        except Missing:
            self.forget(key)
            raise
        self._metrics.status_written("stored")
        stored = after.get("status") or {}
        if lacks(stored, wanted):
            self._on_dropped()
        # The schema may leave out what it doesn't know; asking for it again wouldn't help.
        self._written[key] = _Written(_mark(wanted), _mark(stored), now)
        return Stored(after)

    def forget(self, key: StageKey) -> None:
        """The stage is gone."""
        self._written.pop(key, None)
