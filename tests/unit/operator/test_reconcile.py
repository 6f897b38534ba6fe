"""One turn of one stage: evidence before its consequences, nothing twice, nothing without the right to."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from stage_api import names
from stage_operator.client.kube import Refused, Trouble
from stage_operator.loop.queue import Retry
from stage_operator.observed.cache import POD, STAGE
from stage_operator.values import CreatePod, DeletePod, Emit, Plan
from stage_operator.write.status import INTERVAL_S
from support.reconcile_bench import KEY, Bench, child, existing_pod


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_evidence_is_stored_before_a_pod_is_deleted(bench: Bench) -> None:
    pod = existing_pod(bench)
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({"restarts": 1}, (delete,), status_first=True)
    bench.turn()
    assert bench.kube.writes() == [("patch", names.KIND, "s"), ("delete", "Pod", "s-0-e0-0")]


def test_how_long_a_replica_that_ended_takes_to_be_cleared_away_is_measured(bench: Bench) -> None:
    pod = existing_pod(bench)

    def late(verb: str, kind: str, name: str) -> None:
        bench.now += 0.25

    bench.kube.before = late
    ended = {"index": 0, "history": {"restarts": 1, "last": {"exitCode": 70}}}
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({"replicaStatuses": [ended]}, (delete,), status_first=True)
    bench.turn()
    assert b"omnistage_operator_group_restart_detect_seconds_sum 0.5\n" in bench.metrics.text()
    bench.plan = Plan({"replicaStatuses": [ended], "restarts": 2}, status_first=True)
    bench.turn()
    assert b"omnistage_operator_group_restart_detect_seconds_count 1.0\n" in bench.metrics.text()


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


def test_what_is_refused_is_decided_on_at_once_and_tried_again_after_a_wait(bench: Bench) -> None:
    words = (f"request {number} is denied" for number in itertools.count())

    def deny(verb: str, kind: str, name: str) -> None:
        if verb == "create":
            raise Refused(next(words), code=403, reason="Forbidden")

    bench.kube.before = deny
    bench.plan = Plan({"phase": "Pending"}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() == bench.now, "the plan must know"
    assert bench.status == {}, "nothing is shown that is not so"
    for number in range(2):
        with pytest.raises(Retry, match=f"request {number + 1} is denied"):
            bench.turn()
        assert [refusal.message for refusal in bench.seen[-1].refusals] == [f"request {number} is denied"]
    assert bench.status == {"phase": "Pending"}


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
