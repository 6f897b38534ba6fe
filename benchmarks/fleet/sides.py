"""Two ways to get a fleet: stages for the operator to see to, and a bare client that makes the same objects itself.

Both begin a stage at the same moments. A stage is there when it says Ready, and on the bare side when its four pods
are Ready, which is all that can be asked of objects without an operator.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fleet import planned
from benchmarks.fleet.ground import kubectl, wipe
from benchmarks.fleet.sightings import watching
from stage_api import names
from stage_operator.client.discovery import CHILD_KINDS, discover
from stage_operator.client.kube import PODS, SECRETS, STAGES, Kube, Resource, resource_of
from stage_operator.values import Manifest

LIMIT_S: Final = 600.0
_CHILDREN: Final = (*(resource_of(version, kind) for version, kind in CHILD_KINDS), SECRETS)


@dataclass(slots=True)
class Fleet:
    """How one came about. Times by `time.monotonic`."""

    begun: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)

    def took_s(self) -> float:
        """From the first beginning until all were there."""
        return max(self.ready.values()) - min(self.begun.values())

    def each_s(self) -> list[float]:
        """How long each took."""
        return sorted(self.ready[name] - at for name, at in self.begun.items())


class OperatorSide:
    """Stages, and an operator that sees to them."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    async def converge(self, stages: Sequence[str], rate: float) -> Fleet:
        """Have so many stages begun a second, and wait until each says Ready."""
        fleet = Fleet()
        there = asyncio.Event()

        def see(type_: str, seen: Manifest, at: float) -> None:
            name = seen["metadata"]["name"]
            if type_ != "DELETED" and name in fleet.begun and planned.is_ready(seen):
                fleet.ready.setdefault(name, at)
                if len(fleet.ready) == len(stages):
                    there.set()

        async def begin(name: str) -> None:
            await self._kube.create(planned.stage(name, self._namespace))

        async with watching(self._kube.configuration, STAGES, self._namespace, see):
            await _paced(stages, rate, begin, fleet)
            await _await(there, fleet, len(stages))
        return fleet

    async def check(self, stage: str) -> None:
        """RuntimeError if the operator made other things for a stage than the bare side would."""
        selector = f"{names.LABEL_STAGE}={stage}"
        made = set()
        for resource in (*_CHILDREN, PODS):
            listing = await self._kube.list(resource, self._namespace, selector=selector)
            made |= {(each["kind"], each["metadata"]["name"]) for each in listing.items}
        api = await discover(self._kube, nodes=True)
        stored = await self._kube.get(STAGES, self._namespace, stage)
        parts = planned.parts(stage, stored, api, owner=stored)
        wanted = {(each["kind"], each["metadata"]["name"]) for part in parts for each in part}
        if made != wanted:
            raise RuntimeError(f"the sides differ in {sorted(made ^ wanted)}")

    def wipe(self) -> None:
        """Stages first: without them nobody brings the rest back."""
        for resource in (STAGES, PODS, *_CHILDREN):
            _wipe(resource, self._namespace)


class BareSide:
    """Somebody who makes the same objects, and no more than that."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    async def prepared(self, stages: Sequence[str]) -> dict[str, tuple[list[Manifest], list[Manifest]]]:
        """The objects of each stage, so that thinking about them takes no time later."""
        api = await discover(self._kube, nodes=True)
        metadata = {"name": f"owner-of-{stages[0]}", "namespace": self._namespace}
        owner = await self._kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        wanted = planned.stage(stages[0], self._namespace)
        stored = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=wanted))
        return {name: planned.parts(name, stored, api, owner) for name in stages}

    async def converge(self, stages: Sequence[str], rate: float) -> Fleet:
        """Begin so many stages a second, and wait until all their pods are Ready."""
        parts = await self.prepared(stages)
        fleet = Fleet()
        there = asyncio.Event()
        waiting = {name: {pod["metadata"]["name"] for pod in pods} for name, (_, pods) in parts.items()}

        def see(type_: str, seen: Manifest, at: float) -> None:
            name = seen["metadata"].get("labels", {}).get(names.LABEL_STAGE)
            if name in waiting and type_ != "DELETED" and planned.pod_is_ready(seen):
                waiting[name].discard(seen["metadata"]["name"])
                if not waiting[name]:
                    fleet.ready.setdefault(name, at)
                    del waiting[name]
                if not waiting:
                    there.set()

        async def begin(name: str) -> None:
            for together in parts[name]:
                await asyncio.gather(*map(self._kube.create, together))

        async with watching(self._kube.configuration, PODS, self._namespace, see):
            await _paced(stages, rate, begin, fleet)
            await _await(there, fleet, len(stages))
        return fleet

    def wipe(self) -> None:
        """All of it."""
        for resource in (PODS, *_CHILDREN):
            _wipe(resource, self._namespace)


def _wipe(resource: Resource, namespace: str) -> None:
    """But for what every namespace has, and the owner."""
    wipe(resource.path(namespace), "" if resource is STAGES else names.LABEL_STAGE)


async def _paced(
    stages: Sequence[str], rate: float, begin: Callable[[str], Awaitable[None]], fleet: Fleet
) -> None:
    """Begin each at its moment, whether or not those before it are done."""
    first = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for index, name in enumerate(stages):
            await asyncio.sleep(max(0.0, first + index / rate - time.monotonic()))
            fleet.begun[name] = time.monotonic()
            tasks.create_task(begin(name))  # type: ignore[arg-type]


async def _await(there: asyncio.Event, fleet: Fleet, count: int) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            await there.wait()
    except TimeoutError:
        raise RuntimeError(f"{len(fleet.ready)} of {count} stages were there after {LIMIT_S:g} s") from None
