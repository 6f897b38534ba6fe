"""One turn of one stage: look, decide, tell, do. Whatever happened since the last turn, this one starts from what is.

Evidence goes before its consequences: where a plan says so, nothing is done before its status is stored, and a status
that was decided on an old version is decided on anew.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from stage_operator.client.kube import NODES, STAGES, Kube, KubeError, Missing
from stage_operator.loop.queue import Retry
from stage_operator.observed.cache import NODE, STAGE, Cache, node_of
from stage_operator.telemetry import log as logs
from stage_operator.telemetry.metrics import Metrics
from stage_operator.telemetry.recoveries import Recoveries, ends_between
from stage_operator.telemetry.stage_series import mapping
from stage_operator.values import Api, Emit, Manifest, Objects, Plan, PlanSettings, Refusal, StageKey
from stage_operator.write.apply import Applier, Fenced, emits
from stage_operator.write.events import Events
from stage_operator.write.status import Later, Stale, StatusWriter, Stored

MOST_LOOKS: Final = 3
"""How often a turn starts anew because the stage changed under it."""

SHORTEST_WAKE_S: Final = 0.1
"""A plan that asks to be made again at once, again and again, doesn't take the processor for itself."""

log = logging.getLogger(__name__)


class Planner(Protocol):
    """Decides, and does nothing."""

    def __call__(self, objects: Objects, *, now_s: float, jitter: float, settings: PlanSettings) -> Plan:
        """What should be, and what is to be done about it. `jitter` is in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a turn works with."""

    kube: Kube
    cache: Cache
    writer: StatusWriter
    applier: Applier
    events: Events
    metrics: Metrics
    own_clock: Callable[[], float]
    """UNIX time without a step, which plans are made by, and by which the cache notes what it sees."""
    clock: Callable[[], float] = time.monotonic


class Reconciler:
    """Takes the turns of all stages."""

    def __init__(
        self,
        tools: Tools,
        planner: Planner,
        settings: PlanSettings,
        *,
        api: Callable[[], Api],
        may_act: Callable[[], bool],
    ) -> None:
        """`api` is what the API server serves at present; `may_act`, whether this replica may still do anything."""
        self._kube = tools.kube
        self._cache = tools.cache
        self._writer = tools.writer
        self._applier = tools.applier
        self._events = tools.events
        self._metrics = tools.metrics
        self._planner = planner
        self._settings = settings
        self._api = api
        self._may_act = may_act
        self._clock = tools.clock
        self._own_clock = tools.own_clock
        self._refusals: dict[StageKey, tuple[Refusal, ...]] = {}
        self._recoveries = Recoveries()

    async def turn(self, key: StageKey, waited_s: float) -> float | None:
        """Work on a stage. The answer is when to come again, by the clock; Retry after a wait."""
        logs.stage.set(str(key))
        self._metrics.waited(waited_s)
        began = self._clock()
        result = "error"
        try:
            again_at = await self._turn(key, began - waited_s)
            result = "ok"
        except Fenced:
            result = "fenced"
            return None
        except Missing as error:
            # Most likely the stage itself has gone in the meantime.
            result = "gone"
            raise Retry(error.message) from error
        except KubeError as error:
            result = "trouble"
            raise Retry(error.message) from error
        except Retry:
            result = "refused"
            raise
        finally:
            self._metrics.reconciled(result, self._clock() - began)
        return again_at

    async def _turn(self, key: StageKey, since: float) -> float | None:
        """`since`: when its turn was due."""
        for _ in range(MOST_LOOKS):
            objects = await self._look(key)
            if objects is None:
                return None
            plan = self._decide(objects)
            if not plan.status_first:
                return await self._act(objects.stage, plan)
            if not self._may_act():
                raise Fenced
            match await self._writer.write(objects.stage, plan.status, at_once=True):
                case Stored(after):
                    ended = self._show(objects.stage, after)
                    stage = objects.stage if after is None else after
                    return await self._act(stage, plan, stored=True, since=since if ended else None)
                case Stale():
                    await self._look_closely(key)
        raise Retry("the stage changes faster than it can be decided on")

    async def _act(
        self, stage: Manifest, plan: Plan, *, stored: bool = False, since: float | None = None
    ) -> float | None:
        """Do it, then show it. The answer is when to come again.

        What is refused for the first time is decided on at once, and shown then. What is refused again waits.
        `since`: when the news came of the end of a replica that this is about.
        """
        key = StageKey.of(stage)
        for event in emits(plan.actions):
            self._events.tell(key, event)
        outcome = await self._applier.carry_out(stage, plan.actions)
        if since is not None:
            self._metrics.cleared(self._clock() - since)
        due = []
        if plan.wake_at_s is not None:
            due.append(self._clock() + max(SHORTEST_WAKE_S, plan.wake_at_s - self._own_clock()))
        # Not by their messages, which may be others each time.
        is_known = _places(outcome.refusals) == _places(self._refusals.get(key, ()))
        self._remember(key, outcome.refusals)
        if not stored and is_known:
            due += await self._store(stage, plan)
        if key in outcome.news or not is_known:
            due.append(self._clock())
        if outcome.refusals and is_known:
            raise Retry(outcome.refusals[0].message, no_later_than=min(due, default=None))
        return min(due, default=None)

    async def _store(self, stage: Manifest, plan: Plan) -> list[float]:
        if not self._may_act():
            raise Fenced
        match await self._writer.write(stage, plan.status, at_once=False):
            case Stored(after):
                self._show(stage, after)
                return []
            case Later(at):
                return [at]
            case Stale():
                await self._look_closely(StageKey.of(stage))
                return [self._clock()]

    def _decide(self, objects: Objects) -> Plan:
        try:
            return self._planner(
                objects, now_s=self._own_clock(), jitter=random.uniform(-1, 1), settings=self._settings
            )
        except Exception as error:
            about = objects.stage
            self._events.tell(
                objects.key,
                Emit(
                    "Warning", "ReconcileFailed", f"a defect of the operator: {type(error).__name__}", about
                ),
            )
            raise

    async def _look(self, key: StageKey) -> Objects | None:
        """What there is of a stage; None if there is nothing to do for it."""
        objects = self._cache.objects(key, self._api())
        if objects is None:
            self._forget(key)
            return None
        if objects.stage["metadata"].get("deletionTimestamp") is not None:
            return None  # its children go with it, and none may come
        if objects.api.nodes and await self._meet_nodes(objects):
            return await self._look(key)
        return dataclasses.replace(objects, refusals=self._refusals.get(key, ()))

    async def _meet_nodes(self, objects: Objects) -> bool:
        """Ask for nodes that no event told of yet, so that a missing one is gone for sure. Whether there were any."""
        unknown = {name for pod in objects.pods if (name := node_of(pod)) and name not in objects.nodes}
        met = False
        for name in sorted(unknown):
            try:
                node = await self._kube.get(NODES, None, name)
            except Missing:
                continue
            self._cache.put(NODE, node)
            met |= self._cache.node(name) is not None
        return met

    async def _look_closely(self, key: StageKey) -> None:
        """Read the stage itself, which has changed before its event came."""
        try:
            self._cache.put(STAGE, await self._kube.get(STAGES, key.namespace, key.name))
        except Missing:
            if (stage := self._cache.stage(key)) is not None:
                self._cache.drop(STAGE, stage)

    def _show(self, before: Manifest, after: Manifest | None) -> bool:
        """Keep what was stored, and count what it says. Whether it says that a replica ended."""
        if after is None:
            return False
        self._cache.put(STAGE, after)
        ends = ends_between(mapping(before.get("status")), mapping(after.get("status")))
        for reason, count in ends.items():
            self._metrics.group_restarted(reason, count)
        if (took_s := self._recoveries.see(after, bool(ends), self._clock())) is not None:
            self._metrics.recovered(took_s)
        return bool(ends)

    def _remember(self, key: StageKey, refusals: tuple[Refusal, ...]) -> None:
        if refusals:
            self._refusals[key] = refusals
        else:
            self._refusals.pop(key, None)

    def _forget(self, key: StageKey) -> None:
        self._refusals.pop(key, None)
        self._writer.forget(key)
        self._applier.forget(key)
        self._recoveries.forget(key)


def _places(refusals: tuple[Refusal, ...]) -> set[tuple[str, str, str]]:
    return {(one.kind, one.name, one.reason) for one in refusals}
