"""A replica of several pods: what one of them ends with may be what another one did, and all drain together."""

from __future__ import annotations

from typing import Any

import pytest

from stage_operator.decide.evidence import CAUSE_S
from stage_operator.decide.replica import FAILURE_GRACE_S
from stage_operator.values import DeletePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

TWO_PODS = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
FIRST, SECOND = "pics-0-e0-0", "pics-0-e0-1"
CONSEQUENCES = (0, 70, 71, 73)


def _world(**spec: Any) -> tuple[SimCluster, SimOperator]:
    cluster = SimCluster(stage(**TWO_PODS, **spec))
    operator = SimOperator(cluster)
    operator.settle()
    assert cluster.pods.keys() == {FIRST, SECOND}
    cluster.log.clear()
    return cluster, operator


def _turn(operator: SimOperator) -> Any:
    operator.see_all()
    return operator.turn()


def _replica(cluster: SimCluster) -> dict[str, Any]:
    (replica,) = cluster.status["replicaStatuses"]
    return dict(replica)


def _deletions(cluster: SimCluster) -> dict[str, int | None]:
    return {one.name: one.grace_seconds for one in cluster.log if isinstance(one, DeletePod)}


@pytest.mark.parametrize("deleted", [FIRST, SECOND])
@pytest.mark.parametrize("target", [None, "EvictionByEvictionAPI", "PreemptionByScheduler"])
@pytest.mark.parametrize("cordoned", [False, True])
def test_when_one_pod_is_asked_to_go_all_drain(deleted: str, target: str | None, cordoned: bool) -> None:
    cluster, operator = _world(disruption={"maxUnavailable": 0})
    pod = cluster.pods[deleted]
    if cordoned:
        cluster.cordon(pod["spec"]["nodeName"])
    if target is not None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": target}
        pod["status"]["conditions"].append(condition)
    cluster.delete(deleted, pod["metadata"]["uid"], None)
    _turn(operator)
    other = SECOND if deleted == FIRST else FIRST
    assert _deletions(cluster) == {other: None}, "with its own grace"
    assert _replica(cluster)["phase"] == "Draining"
    assert cluster.status["disruptions"] == 1
    _turn(operator)
    assert set(cluster.pods) == {FIRST, SECOND}, "no life begins beside it"
    operator.settle()
    assert cluster.status["phase"] == "Ready"
    assert cluster.status["disruptions"] == cluster.status["restarts"] == 1


def test_nobody_drains_for_a_pod_that_is_gone_or_has_ended() -> None:
    cluster, operator = _world()
    cluster.delete(SECOND, cluster.pods[SECOND]["metadata"]["uid"], 0, force=True)
    _turn(operator)
    assert _deletions(cluster) == {FIRST: FAILURE_GRACE_S}


@pytest.mark.parametrize("code", [64, 65, 72, 74, 1, 137])
def test_a_cause_is_judged_at_once(code: int) -> None:
    cluster, operator = _world()
    cluster.exit(SECOND, code)
    _turn(operator)
    assert _replica(cluster)["history"]["last"]["exitCode"] == code


@pytest.mark.parametrize("code", CONSEQUENCES)
@pytest.mark.parametrize("cause", [72, 74, 137])
def test_a_consequence_that_is_seen_first_does_not_hide_the_cause(code: int, cause: int) -> None:
    cluster, operator = _world()
    cluster.exit(FIRST, code)
    made = _turn(operator)
    assert (_replica(cluster).get("history"), _deletions(cluster)) == (None, {})
    assert made.wake_at_s == cluster.now_s + CAUSE_S
    cluster.now_s += 3
    cluster.exit(SECOND, cause)
    _turn(operator)
    assert _replica(cluster)["history"]["last"]["exitCode"] == cause
    assert cluster.status["restarts"] == 1


@pytest.mark.parametrize("code", CONSEQUENCES)
def test_it_counts_once_the_other_pod_has_spoken_or_been_silent_for_too_long(code: int) -> None:
    for speaks in (True, False):
        cluster, operator = _world()
        cluster.exit(FIRST, code)
        _turn(operator)
        cluster.now_s += 1 if speaks else CAUSE_S
        if speaks:
            cluster.exit(SECOND, 70)
        _turn(operator)
        assert (cluster.status["restarts"], cluster.status["disruptions"]) == (1, 0)


@pytest.mark.parametrize("code", CONSEQUENCES)
@pytest.mark.parametrize("known_after_s", [0, 1, 28, 40, CAUSE_S - 1])
@pytest.mark.parametrize("budget", [0, 6])
def test_a_node_that_loses_power_is_not_counted_though_the_other_pod_ends_first(
    code: int, known_after_s: int, budget: int
) -> None:
    cluster, operator = _world(failurePolicy={"maxRestarts": budget})
    node = cluster.pods[SECOND]["spec"]["nodeName"]
    cluster.off.add(node)
    cluster.now_s += 12
    cluster.exit(FIRST, code)
    if known_after_s:
        _turn(operator)
        cluster.now_s += known_after_s
    cluster.power_off(node)
    _turn(operator)
    last = _replica(cluster)["history"]["last"]
    assert (last["reason"], last["node"]) == ("NodeLost", node)
    assert (cluster.status["restarts"], cluster.status["disruptions"]) == (1, 1)
    operator.settle()
    assert cluster.status["phase"] == "Ready"
    assert (cluster.status["restarts"], cluster.status["disruptions"]) == (1, 1)


@pytest.mark.parametrize("code", CONSEQUENCES)
def test_a_node_that_is_deleted_as_off_is_not_counted_either(code: int) -> None:
    cluster, operator = _world(failurePolicy={"maxRestarts": 0})
    cluster.exit(FIRST, code)
    _turn(operator)
    cluster.remove_node(cluster.pods[SECOND]["spec"]["nodeName"])
    _turn(operator)
    assert _replica(cluster)["history"]["last"]["reason"] == "NodeLost"


def test_an_operator_that_begins_anew_waits_for_the_cause_as_well() -> None:
    cluster, operator = _world(failurePolicy={"maxRestarts": 0})
    cluster.exit(FIRST, 70)
    _turn(operator)
    cluster.now_s += 20
    again = SimOperator(cluster)
    _turn(again)
    assert _replica(cluster).get("history") is None
    cluster.power_off(cluster.pods[SECOND]["spec"]["nodeName"])
    _turn(again)
    assert _replica(cluster)["history"]["last"]["reason"] == "NodeLost"
