"""What becomes of a stage: from its first pods over every way to end to the end of its trouble."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from stage_api import names
from stage_operator.decide.replica import OWN_WORD_S
from stage_operator.values import CreatePod, DeletePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator


def _world(**spec: Any) -> tuple[SimCluster, SimOperator]:
    """A stage that is ready."""
    cluster = SimCluster(stage(**spec))
    operator = SimOperator(cluster)
    operator.settle()
    return cluster, operator


def _turn(operator: SimOperator) -> Any:
    operator.see_all()
    return operator.turn()


def _replica(cluster: SimCluster, index: int = 0) -> dict[str, Any]:
    return next(one for one in cluster.status["replicaStatuses"] if one["index"] == index)


def _history(cluster: SimCluster, index: int = 0) -> dict[str, Any]:
    return dict(_replica(cluster, index).get("history") or {})


def _reasons(operator: SimOperator) -> list[str]:
    return [event.reason for event in operator.told]


def test_a_new_stage_comes_up_and_is_then_left_alone() -> None:
    cluster, operator = _world(replicas=2)
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0"]
    assert (cluster.status["ready"], cluster.status["phase"]) == ("2/2", "Ready")
    assert cluster.condition("Ready")["status"] == "True"
    before = copy.deepcopy(cluster.status)
    cluster.now_s += 100_000
    made = _turn(operator)
    assert made.status == before
    assert not [action for action in made.actions if isinstance(action, CreatePod | DeletePod)]
    assert operator.told == []


def test_an_end_is_written_down_before_its_pods_are_deleted_and_another_life_follows_its_wait() -> None:
    cluster, operator = _world()
    cluster.exit("pics-0-e0-0", 70, "rank 0 died")
    made = _turn(operator)
    assert made.status_first
    assert _history(cluster)["last"]["exitCode"] == 70
    assert cluster.pods == {}
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 10
    assert _replica(cluster)["phase"] == "BackOff"
    cluster.now_s = made.wake_at_s
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-0-e1-0"]
    operator.settle()
    assert (cluster.status["restarts"], cluster.status["ready"]) == (1, "1/1")
    assert _reasons(operator) == ["ReplicaFailed"]


def test_the_first_failure_after_a_long_time_of_being_ready_is_followed_by_a_new_life_in_one_turn() -> None:
    cluster, operator = _world()
    cluster.now_s += 601
    cluster.exit("pics-0-e0-0", 70)
    made = _turn(operator)
    assert made.status_first
    done = [type(one) for one in made.actions if isinstance(one, CreatePod | DeletePod)]
    assert (done, sorted(cluster.pods)) == ([DeletePod, CreatePod], ["pics-0-e1-0"])


def test_a_new_life_waits_until_nothing_of_the_last_one_runs() -> None:
    cluster, operator = _world()
    cluster.now_s += 601
    cluster.exit("pics-0-e0-0", 70)
    cluster.pods["pics-0-e0-0"]["status"]["phase"] = "Running"  # for another container
    operator.see_all()
    assert not [one for one in operator.decide().actions if isinstance(one, CreatePod)]


@pytest.mark.parametrize("steps", range(6))
def test_an_operator_that_crashes_after_any_step_neither_loses_nor_repeats_a_count(steps: int) -> None:
    cluster, operator = _world()
    cluster.exit("pics-0-e0-0", 70)
    try:
        operator.see_all()
        operator.turn(crash_after=steps)
    except Exception:  # noqa: BLE001 (the process is gone)
        operator = SimOperator(cluster)
    operator.settle()
    assert cluster.status["restarts"] == 1
    assert len(_history(cluster)["recent"]) == 1
    assert sorted(cluster.pods) == ["pics-0-e1-0"]


@pytest.mark.parametrize(("code", "reason"), [(64, "ConfigInvalid"), (65, "ModelInvalid")])
def test_a_wrong_config_or_model_holds_at_once_and_keeps_the_pod(code: int, reason: str) -> None:
    cluster, operator = _world()
    cluster.exit("pics-0-e0-0", code, "spec.engine.dtype: expected another")
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    failed = cluster.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", reason)
    assert "expected another" in failed["message"]
    assert cluster.status["phase"] == "Failed"
    assert cluster.status["restarts"] == 0
    assert _reasons(operator) == ["ReplicaHeld"]


def test_a_spent_budget_holds_with_the_last_pods_and_a_restart_request_lifts_it() -> None:
    cluster, operator = _world(failurePolicy={"maxRestarts": 2})
    for epoch in range(3):
        cluster.exit(f"pics-0-e{epoch}-0", 70, f"end {epoch}")
        operator.settle()
    assert cluster.condition("Failed")["reason"] == "RestartBudgetExceeded"
    assert sorted(cluster.pods) == ["pics-0-e2-0"]
    assert cluster.status["restarts"] == 2
    cluster.annotate("please")
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e3-0"]
    assert cluster.condition("Failed")["status"] == "False"
    assert _history(cluster).get("held") is None
    assert _history(cluster)["recent"] == []
    assert cluster.status["ready"] == "1/1"


def test_a_bad_device_keeps_the_next_life_off_its_node() -> None:
    cluster, operator = _world()
    node = cluster.pods["pics-0-e0-0"]["spec"]["nodeName"]
    cluster.exit("pics-0-e0-0", 72)
    operator.settle()
    made = next(a for a in reversed(cluster.log) if isinstance(a, CreatePod))
    affinity = made.manifest["spec"]["affinity"]["nodeAffinity"]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchFields"][0] == {
        "key": "metadata.name",
        "operator": "NotIn",
        "values": [node],
    }


@pytest.mark.parametrize("how", ["evict", "delete", "force", "unknown", "gone"])
def test_what_befell_the_node_or_was_done_by_hand_is_not_counted(how: str) -> None:
    cluster, operator = _world()
    pod = cluster.pods["pics-0-e0-0"]
    node = pod["spec"]["nodeName"]
    if how == "evict":
        cluster.evict("pics-0-e0-0")
    elif how in ("delete", "force"):
        cluster.delete("pics-0-e0-0", pod["metadata"]["uid"], None, force=how == "force")
    elif how == "unknown":
        cluster.power_off(node)
        cluster.power_on(node)
    else:
        cluster.remove_node(node)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0"]
    assert (cluster.status["restarts"], cluster.status["disruptions"]) == (1, 1)
    assert _history(cluster)["recent"] == []


def test_a_silent_node_is_given_its_grace_and_the_next_life_does_not_wait_for_its_pods() -> None:
    cluster, operator = _world()
    node = cluster.pods["pics-0-e0-0"]["spec"]["nodeName"]
    cluster.now_s += 1000
    cluster.power_off(node)
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 45
    cluster.now_s += 45
    _turn(operator)
    assert "deletionTimestamp" in cluster.pods["pics-0-e0-0"]["metadata"]
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-0-e1-0"]
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0"]
    forced = [action for action in cluster.log if isinstance(action, DeletePod) and action.force]
    assert [action.name for action in forced] == ["pics-0-e0-0"]
    assert cluster.status["ready"] == "1/1"


def test_a_replica_that_is_wanted_no_more_is_remembered_until_its_last_pod_is_gone() -> None:
    cluster, operator = _world()
    cluster.power_off(cluster.pods["pics-0-e0-0"]["spec"]["nodeName"])
    cluster.edit(replicas=0)
    for _ in range(3):
        _turn(operator)
        cluster.now_s += 50
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert _replica(cluster)["phase"] == "Draining"
    operator.settle()
    assert cluster.pods == {}
    assert cluster.status["replicaStatuses"] == []
    assert cluster.status["restarts"] == 0


def test_a_pod_that_the_server_does_not_take_holds_the_stage_until_its_spec_changes() -> None:
    cluster, operator = _world()
    cluster.judge = lambda pod: 'unknown field "spec.nodeSelectr"' if "nodeSelectr" in pod["spec"] else None
    cluster.edit(podTemplate={"spec": {"nodeSelectr": {"pool": "gpu"}}})
    for _ in range(4):
        _turn(operator)
        cluster.come_up()
    accepted = cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "PodInvalid")
    assert 'unknown field "spec.nodeSelectr"' in accepted["message"]
    assert cluster.condition("Ready")["reason"] == "PodInvalid"
    assert cluster.status["phase"] == "Refused"
    assert _reasons(operator).count("PodInvalid") == 1
    assert cluster.status["restarts"] == 0
    cluster.edit(podTemplate={"spec": {"nodeSelector": {"pool": "gpu"}}})
    operator.settle()
    assert cluster.condition("Accepted")["status"] == "True"
    assert (cluster.status["ready"], cluster.status["phase"]) == ("1/1", "Ready")


def test_a_start_that_takes_too_long_is_a_failure_but_waiting_for_room_is_none() -> None:
    cluster = SimCluster(stage(startup={"timeoutSeconds": 60}))
    operator = SimOperator(cluster)
    cluster.full = set(cluster.nodes)
    _turn(operator)
    cluster.schedule()
    _turn(operator)
    cluster.now_s += 5000
    _turn(operator)
    assert cluster.condition("Scheduled")["reason"] == "Unschedulable"
    assert cluster.condition("Degraded")["reason"] == "Unschedulable"
    assert cluster.status["restarts"] == 0
    cluster.full = set()
    cluster.schedule()
    cluster.start()
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 60 + OWN_WORD_S, "it may say by itself why"
    cluster.now_s += 60 + OWN_WORD_S
    _turn(operator)
    assert _history(cluster)["last"]["reason"] == "StartTimeout"


def test_an_image_that_cannot_be_pulled_is_told_and_nothing_is_restarted() -> None:
    cluster = SimCluster(stage())
    operator = SimOperator(cluster)
    _turn(operator)
    cluster.schedule()
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        state = {"waiting": {"reason": reason, "message": "no such image"}}
        cluster.pods["pics-0-e0-0"]["status"]["containerStatuses"] = [
            {"name": names.CONTAINER, "state": state}
        ]
        cluster.now_s += 300
        _turn(operator)
    degraded = cluster.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ImagePullBackOff")
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert _reasons(operator).count("ImagePullBackOff") == 1


def test_a_stranger_with_a_pods_name_is_left_alone_and_told_of() -> None:
    cluster = SimCluster(stage())
    stranger = {
        "metadata": {
            "name": "pics-0-e0-0",
            "uid": "other",
            "labels": {},
            "ownerReferences": [{"uid": "another-stage", "controller": True}],
        },
        "spec": {},
        "status": {"phase": "Running"},
    }
    cluster.pods["pics-0-e0-0"] = copy.deepcopy(stranger)
    operator = SimOperator(cluster)
    for _ in range(3):
        _turn(operator)
    assert cluster.condition("Degraded")["reason"] == "NameConflict"
    assert cluster.pods == {"pics-0-e0-0": stranger}
    del cluster.pods["pics-0-e0-0"]
    operator.settle()
    assert cluster.status["ready"] == "1/1"


def test_a_spec_that_breaks_the_contract_is_told_of_and_its_pods_are_left_alone() -> None:
    cluster, operator = _world()
    pods = copy.deepcopy(cluster.pods)
    cluster.edit(replicas=7, engine={"device": "abacus"}, parallelism={"tensor": 2})
    made = _turn(operator)
    accepted = cluster.condition("Accepted")
    assert accepted["status"] == "False"
    assert "spec.engine.device" in accepted["message"]
    assert "spec.parallelism.tensor" in accepted["message"]
    assert cluster.pods == pods
    assert cluster.status["observedGeneration"] == 2
    assert _reasons(operator) == ["SpecInvalid"]
    assert _turn(operator).status == made.status
    assert len(operator.told) == 1
    cluster.edit(replicas=1, engine={"device": "cpu"}, parallelism={})
    operator.settle()
    assert cluster.condition("Accepted")["status"] == "True"
    assert cluster.pods == pods


def test_a_sidecars_end_is_not_the_replicas() -> None:
    cluster, operator = _world()
    status = cluster.pods["pics-0-e0-0"]["status"]
    over = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status["containerStatuses"].insert(0, {"name": "proxy", "state": over})
    cluster.unready("pics-0-e0-0")
    made = _turn(operator)
    assert not [action for action in made.actions if isinstance(action, DeletePod)]
    assert cluster.condition("Degraded")["reason"] == "SidecarEnded"
    assert "pod pics-0-e0-0: container proxy ended with 1; " in cluster.condition("Degraded")["message"]
    cluster.exit("pics-0-e0-0", 70)
    assert _turn(operator).status_first


def test_a_stage_that_is_being_deleted_gets_nothing_any_more() -> None:
    cluster, operator = _world()
    cluster.stage["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    cluster.pods.clear()
    made = _turn(operator)
    assert made.actions == ()
    assert made.status == cluster.status


def test_a_pod_that_was_taken_before_its_life_was_whole_is_not_made_again_under_its_name() -> None:
    cluster = SimCluster(stage(parallelism={"data": 2}, topology={"ranksPerPod": 1}))
    operator = SimOperator(cluster)
    cluster.judge = lambda pod: "no room in the quota" if pod["metadata"]["name"].endswith("-1") else None
    _turn(operator)
    pod = cluster.pods["pics-0-e0-0"]
    cluster.delete("pics-0-e0-0", pod["metadata"]["uid"], 0, force=True)
    cluster.judge = lambda pod: None
    _turn(operator)
    assert _history(cluster)["last"]["reason"] == "Deleted"
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-0-e1-1"]
    assert (cluster.status["restarts"], cluster.status["disruptions"]) == (1, 1)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_was_used_and_never_written_down_is_not_used_again(epoch: int) -> None:
    cluster, operator = _world() if epoch else (SimCluster(stage()), None)
    operator = operator or SimOperator(cluster)
    if epoch:
        cluster.exit("pics-0-e0-0", 70)
        _turn(operator)
        cluster.now_s += 30
    unwritten = copy.deepcopy(cluster.stage)
    _turn(operator)
    name = f"pics-0-e{epoch}-0"
    cluster.stage = unwritten  # the write was lost, not the pod
    cluster.delete(name, cluster.pods[name]["metadata"]["uid"], 0, force=True)
    operator.settle()
    assert sorted(cluster.pods) == [f"pics-0-e{epoch + 1}-0"]
