"""One turn of one stage: evidence before its consequences, nothing twice, nothing without the right to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from stage_api import names
from stage_operator.apply import Applier
from stage_operator.cache import POD, STAGE, Cache, kind_of
from stage_operator.events import Events
from stage_operator.kube import Refused, Trouble
from stage_operator.metrics import Metrics
from stage_operator.model import (
    Api,
    Apply,
    CreateOnce,
    CreatePod,
    DeletePod,
    Emit,
    Objects,
    Plan,
    PlanSettings,
    Remove,
    StageKey,
)
from stage_operator.queue import Retry
from stage_operator.reconcile import Reconciler, Tools
from stage_operator.status import INTERVAL_S, StatusWriter
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
        self.cache = Cache()
        self.now = 100.0
        self.may_act = True
        self.plan = Plan({"phase": "Pending"})
        self.defect: Exception | None = None
        self.seen: list[Objects] = []
        metrics = Metrics("test")
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
                self.clock,
                lambda: self.now + 1_000_000,
            ),
            self.decide,
            PlanSettings("image"),
            api=lambda: Api(server_minor=37),
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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


def existing_pod(bench: Bench, name: str = "s-0-e0-0", **fields: Any) -> dict[str, Any]:
    pod = bench.kube.store(child("Pod", name, spec={}, status={"phase": "Running"}, **fields))
    bench.cache.put(POD, pod)
    return pod


def test_evidence_is_stored_before_a_pod_is_deleted(bench: Bench) -> None:
    pod = existing_pod(bench)
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({"restarts": 1}, (delete,), status_first=True)
    bench.turn()
    assert bench.kube.writes() == [("patch", names.KIND, "s"), ("delete", "Pod", "s-0-e0-0")]


def test_nothing_is_deleted_when_the_evidence_could_not_be_stored(bench: Bench) -> None:
    pod = existing_pod(bench)
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({"restarts": 1}, (delete,), status_first=True)
    bench.kube.failures[("patch", names.KIND)] = [Trouble("down")]
    with pytest.raises(Retry, match="down"):
        bench.turn()
    assert bench.kube.writes() == [("patch", names.KIND, "s")]


def test_a_stage_that_changed_meanwhile_is_decided_on_anew(bench: Bench) -> None:
    changed = bench.kube.objects[(names.KIND, "ns", "s")] | {"spec": {"replicas": 2}}
    bench.kube.store(changed)
    bench.plan = Plan({"restarts": 1}, status_first=True)
    bench.turn()
    assert [each.stage["spec"] for each in bench.seen] == [{}, {"replicas": 2}]
    assert bench.status == {"restarts": 1}


def test_an_old_leaders_status_is_not_stored_over_a_newer_one(bench: Bench) -> None:
    stage = bench.kube.objects[(names.KIND, "ns", "s")]
    bench.kube.store({**stage, "status": {"restarts": 7}})
    bench.plan = Plan({"restarts": 1})
    again_at = bench.turn()
    assert bench.status == {"restarts": 7}
    assert again_at == bench.now, "it is decided on anew at once"
    assert bench.cache.stage(KEY) == bench.kube.objects[(names.KIND, "ns", "s")]


def test_statuses_are_written_once_in_half_a_second_and_the_last_one_is_written(bench: Bench) -> None:
    for number in range(5):
        bench.plan = Plan({"readyReplicas": number})
        again_at = bench.turn()
        bench.now += 0.01
    assert len(bench.kube.writes()) == 1
    assert again_at == pytest.approx(100.0 + INTERVAL_S)
    bench.now = 100.0 + INTERVAL_S
    assert bench.turn() is None
    assert bench.status == {"readyReplicas": 4}
    assert len(bench.kube.writes()) == 2


def test_evidence_does_not_wait_for_its_half_second(bench: Bench) -> None:
    bench.plan = Plan({"restarts": 0})
    bench.turn()
    bench.plan = Plan({"restarts": 1}, status_first=True)
    bench.turn()
    assert bench.status == {"restarts": 1}


def test_an_equal_status_is_not_written(bench: Bench) -> None:
    for _ in range(3):
        bench.turn()
        bench.now += 1
    assert len(bench.kube.writes()) == 1


def test_a_status_of_which_the_schema_drops_a_part_is_not_written_over_and_over(bench: Bench) -> None:
    bench.kube.prune = lambda status: {name: value for name, value in status.items() if name != "unknown"}
    bench.plan = Plan({"phase": "Ready", "unknown": 1})
    for _ in range(3):
        bench.turn()
        bench.now += 1
    assert len(bench.kube.writes()) == 1
    bench.plan = Plan({"phase": "Failed", "unknown": 1})
    bench.turn()
    assert bench.status == {"phase": "Failed"}


def test_a_field_that_is_wanted_no_more_goes(bench: Bench) -> None:
    bench.plan = Plan({"phase": "Ready", "topology": {"worldSize": 2, "digest": "x"}})
    bench.turn()
    bench.now += 1
    bench.plan = Plan({"phase": "Ready", "topology": {"worldSize": 1}})
    bench.turn()
    assert bench.status == {"phase": "Ready", "topology": {"worldSize": 1}}


def test_a_pod_that_was_made_is_known_before_its_event(bench: Bench) -> None:
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() == bench.now, "what was made is looked at"
    bench.plan = Plan({})
    bench.turn()
    assert [pod["metadata"]["name"] for pod in bench.seen[-1].pods] == ["s-0-e0-0"]


def test_a_pod_made_before_a_crash_is_taken_for_what_it_is(bench: Bench) -> None:
    bench.kube.store(child("Pod", "s-0-e0-0", spec={}, status={"phase": "Running"}))
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api(server_minor=37))
    assert objects is not None
    assert [pod["status"] for pod in objects.pods] == [{"phase": "Running"}]
    assert not objects.refusals


def test_a_strangers_pod_in_the_way_is_told_to_the_plan_and_left_alone(bench: Bench) -> None:
    stranger = child("Pod", "s-0-e0-0", spec={})
    stranger["metadata"]["ownerReferences"] = []
    bench.kube.store(stranger)
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() == bench.now, "the plan must know"
    with pytest.raises(Retry):
        bench.turn()
    (refusal,) = bench.seen[-1].refusals
    assert (refusal.kind, refusal.name, refusal.reason) == ("Pod", "s-0-e0-0", "AlreadyExists")


def test_a_refused_pod_does_not_keep_the_others_from_being_made(bench: Bench) -> None:
    bench.kube.failures[("create", "Pod")] = [Refused("exceeded quota", code=403, reason="Forbidden")]
    bench.plan = Plan({}, tuple(CreatePod(child("Pod", f"s-{n}-e0-0", spec={})) for n in range(3)))
    bench.turn()
    assert [name for kind, _, name in bench.kube.objects if kind == "Pod"] == ["s-1-e0-0", "s-2-e0-0"]
    bench.plan = Plan({})
    bench.turn()
    assert [refusal.message for refusal in bench.seen[-1].refusals] == ["exceeded quota"]
    bench.turn()
    assert bench.seen[-1].refusals == ()


def test_what_could_not_be_deleted_is_not_replaced(bench: Bench) -> None:
    pod = existing_pod(bench)
    bench.kube.failures[("delete", "Pod")] = [Refused("no right to", code=403, reason="Forbidden")]
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({}, (delete, CreatePod(child("Pod", "s-0-e1-0", spec={}))))
    bench.turn()
    assert ("create", "Pod", "s-0-e1-0") not in bench.kube.calls


def test_only_the_very_pod_is_deleted(bench: Bench) -> None:
    existing_pod(bench)
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", "another-uid"),))
    bench.turn()
    assert ("Pod", "ns", "s-0-e0-0") in bench.kube.objects


def test_a_pod_that_needs_its_grace_stays_in_sight_until_it_is_gone(bench: Bench) -> None:
    pod = existing_pod(bench)
    uid = pod["metadata"]["uid"]
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", uid, grace_seconds=5),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api(server_minor=37))
    assert objects is not None
    assert "deletionTimestamp" in objects.pods[0]["metadata"]
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", uid, force=True),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api(server_minor=37))
    assert objects is not None
    assert objects.pods == ()


def test_what_goes_together_goes_at_once_and_the_rest_in_order(bench: Bench) -> None:
    pod = existing_pod(bench)
    bench.plan = Plan(
        {},
        (
            DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"]),
            CreateOnce(child("Secret", "s-keys")),
            CreatePod(child("Pod", "a", spec={})),
            CreatePod(child("Pod", "b", spec={})),
            Apply(child("Service", "s", spec={"ports": []})),
        ),
    )
    bench.turn()
    assert bench.kube.writes() == [
        ("delete", "Pod", "s-0-e0-0"),
        ("create", "Secret", "s-keys"),
        ("create", "Pod", "a"),
        ("create", "Pod", "b"),
        ("apply", "Service", "s"),
    ]


def test_a_child_is_applied_once_and_again_when_it_is_wanted_otherwise(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"ports": [1, 2]})),))
    bench.turn()
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 1
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"ports": [1]})),))
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 2


def test_a_child_that_somebody_changed_is_put_right(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"selector": {"a": "b"}})),))
    bench.turn()
    live = bench.kube.objects[("Service", "ns", "s")]
    bench.cache.put(kind_of("v1", "Service"), bench.kube.store({**live, "spec": {"selector": {"a": "x"}}}))
    bench.turn()
    assert bench.kube.objects[("Service", "ns", "s")]["spec"] == {"selector": {"a": "b"}}
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 2


def test_what_others_add_to_a_child_is_no_reason_to_apply_it(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"selector": {"a": "b"}})),))
    bench.turn()
    live = bench.kube.objects[("Service", "ns", "s")]
    added = {**live, "spec": {**live["spec"], "clusterIP": "10.0.0.1"}}
    bench.cache.put(kind_of("v1", "Service"), bench.kube.store(added))
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 1


def test_a_strangers_child_is_not_taken_over(bench: Bench) -> None:
    bench.kube.store(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "ns", "name": "s"},
            "spec": {"x": 1},
        }
    )
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"x": 2})),))
    bench.turn()
    assert bench.kube.objects[("Service", "ns", "s")]["spec"] == {"x": 1}
    with pytest.raises(Retry):
        bench.turn()
    assert bench.seen[-1].refusals[0].reason == "AlreadyExists"


def test_a_secret_is_made_once_and_made_sure_of_when_pods_are_made(bench: Bench) -> None:
    once = CreateOnce(child("Secret", "s-keys"), draw=lambda: {"key": "drawn"})
    bench.plan = Plan({}, (once,))
    bench.turn()
    bench.turn()
    assert bench.kube.calls.count(("create", "Secret", "s-keys")) == 1
    assert bench.kube.objects[("Secret", "ns", "s-keys")]["stringData"] == {"key": "drawn"}
    bench.plan = Plan({}, (once, CreatePod(child("Pod", "s-0-e0-0", spec={}))))
    bench.turn()
    assert bench.kube.calls.count(("create", "Secret", "s-keys")) == 2


def test_a_child_that_is_wanted_no_more_is_removed(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={})),))
    bench.turn()
    bench.plan = Plan({}, (Remove("v1", "Service", "s"),))
    bench.turn()
    assert ("Service", "ns", "s") not in bench.kube.objects
    bench.turn()


def test_a_replica_that_may_not_act_writes_nothing(bench: Bench) -> None:
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    bench.may_act = False
    assert bench.turn() is None
    bench.plan = Plan({"restarts": 1}, status_first=True)
    assert bench.turn() is None
    assert bench.kube.writes() == []


def test_a_replica_that_loses_the_lead_half_way_stops_there(bench: Bench) -> None:
    pod = existing_pod(bench)

    def lose(verb: str, kind: str, name: str) -> None:
        bench.may_act = verb != "delete"

    bench.kube.before = lose
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({}, (delete, CreatePod(child("Pod", "s-0-e1-0", spec={}))))
    bench.turn()
    assert bench.kube.writes() == [("delete", "Pod", "s-0-e0-0")]


def test_a_stage_that_is_going_gets_nothing_new(bench: Bench) -> None:
    stage = bench.kube.objects[(names.KIND, "ns", "s")]
    going = {**stage, "metadata": {**stage["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    bench.cache.put(STAGE, bench.kube.store(going))
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() is None
    assert bench.kube.writes() == []


def test_a_stage_that_is_gone_is_nothing_to_work_on(bench: Bench) -> None:
    stage = bench.cache.stage(KEY)
    assert stage is not None
    bench.cache.drop(STAGE, stage)
    assert bench.turn() is None
    assert bench.seen == []


def test_a_plan_that_wants_to_look_again_is_asked_in_time(bench: Bench) -> None:
    bench.plan = Plan({}, wake_at_s=bench.now + 1_000_000 + 30)
    assert bench.turn() == pytest.approx(bench.now + 30)


def test_a_node_without_an_event_yet_is_asked_for_and_one_that_is_gone_is_missing(bench: Bench) -> None:
    bench.kube.store({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}})
    for name, node in (("a", "new"), ("b", "gone")):
        bench.cache.put(POD, bench.kube.store(child("Pod", name, spec={"nodeName": node})))
    bench.turn()
    assert set(bench.seen[-1].nodes) == {"new"}
    assert bench.cache.node("new") is not None


def test_a_defect_of_the_plan_is_told_to_people(bench: Bench) -> None:
    bench.defect = KeyError("spec")

    async def work() -> None:
        with pytest.raises(KeyError):
            await bench.reconciler.turn(KEY, 0.0)
        teller = asyncio.create_task(bench.events.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        teller.cancel()

    asyncio.run(work())
    (event,) = [each for (kind, _, _), each in bench.kube.objects.items() if kind == "Event"]
    assert event["reason"] == "ReconcileFailed"
    assert event["type"] == "Warning"


def test_events_of_a_plan_are_told_about_its_objects(bench: Bench) -> None:
    stage = bench.cache.stage(KEY)
    assert stage is not None
    bench.plan = Plan({}, (Emit("Normal", "Restarting", "because", stage),))

    async def work() -> None:
        await bench.reconciler.turn(KEY, 0.0)
        teller = asyncio.create_task(bench.events.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        teller.cancel()

    asyncio.run(work())
    (event,) = [each for (kind, _, _), each in bench.kube.objects.items() if kind == "Event"]
    assert event["regarding"]["uid"] == "stage-uid"
    assert (event["reason"], event["note"]) == ("Restarting", "because")
