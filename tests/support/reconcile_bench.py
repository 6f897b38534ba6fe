"""A reconciler on a bench: a fake API server, a plan that the test sets, clocks that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from stage_api import names
from stage_operator.loop.reconcile import Reconciler, Tools
from stage_operator.observed.cache import POD, STAGE, Cache
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Api, Objects, Plan, PlanSettings, StageKey
from stage_operator.write.apply import Applier
from stage_operator.write.events import Events
from stage_operator.write.status import StatusWriter
from support.fake_kube import FakeKube

KEY = StageKey("ns", "s")
T = TypeVar("T")


def child(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": name,
        "labels": {names.LABEL_STAGE: "s"},
        "ownerReferences": [{"kind": names.KIND, "name": "s", "uid": "stage-uid", "controller": True}],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


class Bench:
    """A reconciler with a fake API server, a plan set by the test, and clocks that the test moves."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.now = 100.0
        self.cache = Cache(lambda: self.now + 1_000_000)
        self.may_act = True
        self.plan = Plan({"phase": "Pending"})
        self.defect: Exception | None = None
        self.seen: list[Objects] = []
        metrics = self.metrics = Metrics("test")
        kube: Any = self.kube
        self.events = Events(kube, "me", metrics, lambda: self.may_act, self.clock)
        self.reconciler = Reconciler(
            Tools(
                kube,
                self.cache,
                StatusWriter(kube, metrics, self.clock),
                Applier(kube, self.cache, metrics, lambda: self.may_act),
                self.events,
                metrics,
                lambda: self.now + 1_000_000,
                self.clock,
            ),
            self.decide,
            PlanSettings("image"),
            api=lambda: Api(),
            may_act=lambda: self.may_act,
        )
        metadata = {"namespace": "ns", "name": "s", "uid": "stage-uid", "generation": 1}
        stage = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": {}}
        self.cache.put(STAGE, self.kube.store(stage))

    def clock(self) -> float:
        return self.now

    def decide(self, objects: Objects, *, now_s: float, jitter: float, settings: PlanSettings) -> Plan:
        assert now_s == self.now + 1_000_000
        assert -1 <= jitter <= 1
        self.seen.append(objects)
        if self.defect is not None:
            raise self.defect
        return self.plan

    def turn(self) -> float | None:
        return run(self.reconciler.turn(KEY, 0.0))

    @property
    def status(self) -> dict[str, Any]:
        stored: dict[str, Any] = self.kube.objects[(names.KIND, "ns", "s")].get("status", {})
        return stored

    def objects(self) -> Objects:
        """What the next plan would be made from."""
        found = self.cache.objects(KEY, Api())
        assert found is not None
        return found


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


def existing_pod(bench: Bench, name: str = "s-0-e0-0", **fields: Any) -> dict[str, Any]:
    pod = bench.kube.store(child("Pod", name, spec={}, status={"phase": "Running"}, **fields))
    bench.cache.put(POD, pod)
    return pod
