"""What a stage shows: conditions that keep their time, a phase in a word, and no more than fits."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from stage_api import names
from stage_api.decode import decode
from stage_api.outcome import ExitCode, TerminationReport
from stage_api.status import DiffusionStageStatus
from stage_operator.decide.remembered_status import unix_s
from stage_operator.decide.replica import OWN_WORD_S
from stage_operator.values import Api, Refusal
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


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    cluster, operator = _world()
    before = cluster.condition("Ready")
    cluster.now_s += 50
    cluster.unready("pics-0-e0-0")
    _turn(operator)
    lost = cluster.condition("Ready")
    assert unix_s(lost["lastTransitionTime"]) == cluster.now_s
    assert lost["lastTransitionTime"] != before["lastTransitionTime"]
    cluster.now_s += 50
    cluster.exit("pics-0-e0-0", 70)
    _turn(operator)
    failing = cluster.condition("Ready")
    assert failing["reason"] != lost["reason"]
    assert failing["lastTransitionTime"] == lost["lastTransitionTime"]


def test_every_condition_says_which_generation_it_is_about() -> None:
    cluster, operator = _world()
    cluster.edit(replicas=2)
    _turn(operator)
    assert {one["observedGeneration"] for one in cluster.status["conditions"]} == {2}
    assert cluster.status["observedGeneration"] == 2


def test_the_phase_follows_a_stage_through_its_life() -> None:
    cluster = SimCluster(stage(failurePolicy={"maxRestarts": 1}))
    operator = SimOperator(cluster)
    seen: list[str] = []

    def look() -> None:
        _turn(operator)
        seen.append(cluster.status["phase"])

    look()
    for step in (cluster.schedule, cluster.warm):
        step()
        look()
        cluster.start()
    look()
    cluster.warm()
    look()
    cluster.exit("pics-0-e0-0", 70)
    look()
    look()
    cluster.now_s += 10
    look()
    operator.settle()
    look()
    cluster.exit("pics-0-e1-0", 70)
    look()
    assert list(dict.fromkeys(seen)) == [
        "Provisioning",
        "Starting",
        "Ready",
        "BackOff",
        "Restarting",
        "Failed",
    ]


def test_a_stage_is_never_ready_while_its_pod_ends_again_and_again() -> None:
    cluster = SimCluster(stage())
    operator = SimOperator(cluster)
    for _ in range(40):
        _turn(operator)
        assert cluster.condition("Ready")["status"] == "False"
        cluster.reap()
        cluster.schedule()
        cluster.start()
        for name, pod in list(cluster.pods.items()):
            if pod["status"]["phase"] == "Running":
                cluster.exit(name, 1, "no such file")
        cluster.now_s += 30
    assert "no such file" in cluster.condition("Failed")["message"]


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal("Pod", "pics-0-e0-0", "Forbidden", "exceeded quota"), "PodRefused"),
        (Refusal("Service", "pics", "AlreadyExists", "belongs to somebody else"), "NameConflict"),
    ],
)
def test_what_the_cluster_refuses_is_told(refusal: Refusal, reason: str) -> None:
    operator = SimOperator(SimCluster(stage()))
    operator.refusals = (refusal,)
    status = operator.decide().status
    degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    assert refusal.message in degraded["message"]


def test_a_pod_that_the_cluster_calls_invalid_makes_the_spec_unacceptable() -> None:
    cluster = SimCluster(stage())
    operator = SimOperator(cluster)
    operator.refusals = (Refusal("Pod", "pics-0-e0-0", "Invalid", "spec.containers[0].env: wrong"),)
    operator.turn()
    accepted = cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "PodInvalid")
    operator.settle()
    assert cluster.condition("Accepted")["status"] == "True"


def test_a_model_from_outside_is_ready_once_a_replica_has_loaded_it() -> None:
    source = {"model": {"source": {"huggingFace": {"repo": "some/model", "revision": "a" * 40}}}}
    cluster = SimCluster(stage(**source))
    operator = SimOperator(cluster)
    _turn(operator)
    assert cluster.condition("ModelReady")["status"] == "Unknown"
    cluster.schedule()
    state = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    cluster.pods["pics-0-e0-0"]["status"]["initContainerStatuses"] = [
        {"name": names.FETCH_CONTAINER, "state": state}
    ]
    made = _turn(operator)
    assert cluster.condition("ModelReady")["reason"] == "Fetching"
    assert made.wake_at_s is not None
    del cluster.pods["pics-0-e0-0"]["status"]["initContainerStatuses"]
    operator.settle()
    assert cluster.condition("ModelReady")["status"] == "True"


def test_a_model_that_is_not_what_the_spec_says_is_not_ready_though_it_lies_in_the_image() -> None:
    cluster, operator = _world()
    assert cluster.condition("ModelReady")["reason"] == "InImage"
    cluster.exit("pics-0-e0-0", 65)
    operator.settle()
    assert (cluster.condition("ModelReady")["status"], cluster.condition("ModelReady")["reason"]) == (
        "False",
        "ModelInvalid",
    )


def test_a_fetch_that_takes_too_long_is_a_failure() -> None:
    source = {"model": {"source": {"huggingFace": {"repo": "some/model", "revision": "a" * 40}}}}
    cluster = SimCluster(stage(startup={"fetchTimeoutSeconds": 100}, **source))
    operator = SimOperator(cluster)
    _turn(operator)
    cluster.schedule()
    state = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    cluster.pods["pics-0-e0-0"]["status"]["initContainerStatuses"] = [
        {"name": names.FETCH_CONTAINER, "state": state}
    ]
    _turn(operator)
    cluster.now_s += 100 + OWN_WORD_S
    _turn(operator)
    last = cluster.status["replicaStatuses"][0]["history"]["last"]
    assert last["reason"] == "StartTimeout"
    assert "fetched" in last["message"]


def test_a_status_that_somebody_spoilt_is_written_anew_and_the_pods_stay() -> None:
    cluster, operator = _world(replicas=2)
    sound, pods = copy.deepcopy(cluster.status), copy.deepcopy(cluster.pods)
    for spoilt in ({}, {"conditions": 7}, {"replicaStatuses": [{"index": "x"}, 5]}, {"restarts": -1}):
        cluster.stage["status"] = {**sound, **spoilt} if spoilt else {}
        operator.settle()
        assert cluster.pods == pods
        assert cluster.status["ready"] == "2/2"


def test_a_status_of_a_thousand_troubled_replicas_still_fits() -> None:
    cluster = SimCluster(stage(replicas=1000))
    operator = SimOperator(cluster)
    operator.settle()
    for name in cluster.pods:
        cluster.exit(name, 70, "m" * 250)
    status = _turn(operator).status
    assert len(json.dumps(status)) < 1_000_000
    assert decode(DiffusionStageStatus, status).restarts == 1000
    assert len(status["replicaStatuses"]) == 1000


def test_a_selector_finds_the_pods_that_serve() -> None:
    cluster, _ = _world()
    wanted = dict(part.split("=") for part in cluster.status["selector"].split(","))
    labels = cluster.pods["pics-0-e0-0"]["metadata"]["labels"]
    assert wanted.items() <= labels.items()


def test_where_nodes_cannot_be_seen_a_pod_that_does_not_go_is_given_up_after_its_time() -> None:
    cluster = SimCluster(stage())
    operator = SimOperator(cluster, Api(nodes=False))
    operator.settle()
    pod = cluster.pods["pics-0-e0-0"]
    cluster.off.add(pod["spec"]["nodeName"])
    cluster.delete("pics-0-e0-0", pod["metadata"]["uid"], 30)
    _turn(operator)
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 30 + 120
    cluster.now_s = made.wake_at_s
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-0-e1-0"]


def test_a_token_that_the_hub_refused_holds_the_stage_and_is_told_where_the_model_is() -> None:
    source = {"model": {"source": {"huggingFace": {"repo": "some/model", "revision": "a" * 40}}}}
    cluster = SimCluster(stage(**source))
    operator = SimOperator(cluster)
    _turn(operator)
    cluster.schedule()
    said = "the hub refused the stage's token for some/model: 401 Client Error."
    report = TerminationReport(exit_code=ExitCode.MODEL, reason="ModelError", message=said)
    over = {"exitCode": 65, "reason": "Error", "message": report.encode().decode()}
    cluster.pods["pics-0-e0-0"]["status"] |= {
        "phase": "Failed",
        "initContainerStatuses": [{"name": names.FETCH_CONTAINER, "state": {"terminated": over}}],
    }
    _turn(operator)
    model = cluster.condition("ModelReady")
    assert (model["status"], model["reason"], model["message"]) == ("False", "ModelInvalid", said)
    assert said in cluster.condition("Ready")["message"]
    assert cluster.condition("Failed")["status"] == "True"
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
