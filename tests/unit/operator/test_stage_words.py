"""What a stage is called, and what people are told of it, is so."""

from __future__ import annotations

from typing import Any

import pytest

from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

NEW = {"device": "cpu", "dtype": "float32"}
ONE_MORE = {"maxSurge": 1, "maxUnavailable": 0}


def _world(**spec: Any) -> tuple[SimCluster, SimOperator]:
    cluster = SimCluster(stage(**spec))
    operator = SimOperator(cluster)
    operator.settle()
    assert cluster.status["phase"] == "Ready"
    operator.told.clear()
    return cluster, operator


def _turn(operator: SimOperator) -> Any:
    operator.see_all()
    return operator.turn()


def _events(operator: SimOperator) -> list[str]:
    return [event.reason for event in operator.told]


def _until_at_rest(cluster: SimCluster, operator: SimOperator) -> list[tuple[str, str]]:
    """Phase and reason of Degraded, as they come."""
    seen: list[tuple[str, str]] = []
    for _ in range(30):
        made = _turn(operator)
        now = (cluster.status["phase"], cluster.condition("Degraded")["reason"])
        if not seen or seen[-1] != now:
            seen.append(now)
        cluster.come_up()
        if made.wake_at_s is not None and made.wake_at_s < cluster.now_s + 700:
            cluster.now_s = max(cluster.now_s + 1, made.wake_at_s)
    return seen


def _fail_once(cluster: SimCluster, operator: SimOperator) -> None:
    """A failure that is not forgiven yet."""
    cluster.exit(cluster.of(0)[0]["metadata"]["name"], 70)
    operator.settle()
    operator.told.clear()


def _drain(cluster: SimCluster) -> None:
    cluster.cordon(cluster.of(0)[0]["spec"]["nodeName"])


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        (lambda cluster: cluster.edit(engine=NEW), {}),
        (lambda cluster: cluster.edit(engine=NEW), {"replicas": 2}),
        (_drain, {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}),
        (lambda cluster: cluster.edit(replicas=1), {"replicas": 2}),
        (lambda cluster: cluster.annotate("now"), {}),
    ],
)
def test_a_replica_that_is_ended_on_purpose_is_no_failing_one_whatever_it_went_through(
    change: Any, spec: dict[str, Any]
) -> None:
    cluster, operator = _world(**spec)
    _fail_once(cluster, operator)
    change(cluster)
    seen = _until_at_rest(cluster, operator)
    assert {reason for _, reason in seen} == {"AsExpected"}, seen
    assert seen[-1][0] == "Ready"
    assert not {"Restarting", "BackOff"} & {phase for phase, _ in seen}, seen


def test_replicas_that_are_added_are_starting_though_another_one_failed_lately() -> None:
    cluster, operator = _world()
    _fail_once(cluster, operator)
    cluster.edit(replicas=3)
    assert {phase for phase, _ in _until_at_rest(cluster, operator)} <= {"Provisioning", "Starting", "Ready"}


@pytest.mark.parametrize(("code", "said"), [(70, "ReplicaFailing"), (None, "ReplicaDisrupted")])
def test_a_replica_that_is_lost_is_said_to_fail_only_if_it_did(code: int | None, said: str) -> None:
    cluster, operator = _world(replicas=2)
    pod = cluster.of(0)[0]["metadata"]
    if code is None:
        cluster.delete(pod["name"], pod["uid"], None)
    else:
        cluster.exit(pod["name"], code)
    seen = _until_at_rest(cluster, operator)
    assert {reason for phase, reason in seen if phase != "Ready"} == {said}, seen
    assert {phase for phase, _ in seen} == {"Restarting", "BackOff", "Ready"}


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("rollout", [{}, ONE_MORE, {"maxUnavailable": "100%"}])
@pytest.mark.parametrize("how", ["spec", "annotation"])
def test_a_rollout_is_told_once_when_it_starts_and_once_when_it_is_done(
    replicas: int, rollout: dict[str, Any], how: str
) -> None:
    cluster, operator = _world(replicas=replicas, rollout=rollout)
    if how == "spec":
        cluster.edit(engine=NEW)
    else:
        cluster.annotate("now")
    seen = _until_at_rest(cluster, operator)
    assert [one for one in _events(operator) if one.startswith("Rollout")] == [
        "RolloutStarted",
        "RolloutFinished",
    ]
    assert [phase for phase, _ in seen] == ["Updating", "Ready"]


@pytest.mark.parametrize("partition", [1, 2, 3])
def test_a_rollout_that_keeps_some_replicas_back_says_so(partition: int) -> None:
    cluster, operator = _world(replicas=3)
    cluster.edit(engine=NEW, rollout={"partition": partition})
    _until_at_rest(cluster, operator)
    told = f"{3 - partition} of 3 replicas have the spec as it is now"
    assert cluster.condition("Ready")["message"].startswith(told)
    assert cluster.condition("Progressing")["message"].startswith(told)
    finished = [event.message for event in operator.told if event.reason == "RolloutFinished"]
    assert all(message.startswith(told) for message in finished)
    assert len(finished) == (partition < 3)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_stage_whose_node_is_silent_says_which_until_it_is_known_more(replicas: int) -> None:
    cluster, operator = _world(replicas=replicas)
    node = cluster.of(0)[0]["spec"]["nodeName"]
    cluster.power_off(node)
    for pod in cluster.pods.values():
        if pod["spec"]["nodeName"] == node:
            cluster.unready(pod["metadata"]["name"])  # as the controller of nodes does
    _turn(operator)
    degraded = cluster.condition("Degraded")
    assert (cluster.status["phase"], degraded["reason"]) == ("Degraded", "NodeNotReady")
    assert node in degraded["message"]
    cluster.reach(node)
    cluster.warm()
    _turn(operator)
    assert cluster.status["phase"] == "Ready"


def test_a_replica_whose_probe_fails_is_said_not_to_be_ready() -> None:
    cluster, operator = _world()
    cluster.unready("pics-0-e0-0")
    _turn(operator)
    assert (cluster.status["phase"], cluster.condition("Degraded")["reason"]) == (
        "Degraded",
        "ReplicaNotReady",
    )


@pytest.mark.parametrize(
    ("edit", "phase", "ready"),
    [({"replicas": 0}, "Stopped", "True"), ({"suspend": True}, "Suspended", "False")],
)
def test_a_stage_that_is_to_have_no_pods_is_not_ready_while_it_has_some(
    edit: dict[str, Any], phase: str, ready: str
) -> None:
    cluster, operator = _world(replicas=2)
    cluster.edit(**edit)
    _turn(operator)
    assert cluster.pods
    assert (cluster.status["phase"], cluster.condition("Ready")["status"]) == (phase, "False")
    operator.settle()
    assert not cluster.pods
    assert (cluster.status["phase"], cluster.condition("Ready")["status"]) == (phase, ready)
