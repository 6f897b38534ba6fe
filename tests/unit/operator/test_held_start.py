"""A replica that is held since it never came up: its pods are ended, and their logs stay if that can be had."""

from __future__ import annotations

from stage_operator.decide.replica import HELD_GRACE_S, OWN_WORD_S
from stage_operator.manifests.pod import GRACE_S, STARTUP_SPARE_S
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator


def _never_up() -> tuple[SimCluster, SimOperator]:
    """A stage that is held since its start took too long."""
    cluster = SimCluster(stage(startup={"timeoutSeconds": 60}, failurePolicy={"maxRestarts": 0}))
    operator = SimOperator(cluster)
    operator.see_all()
    operator.turn()
    cluster.schedule()
    cluster.start()
    operator.see_all()
    operator.turn()
    cluster.now_s += 60 + OWN_WORD_S
    operator.see_all()
    operator.turn()
    assert cluster.status["replicaStatuses"][0]["phase"] == "Held"
    return cluster, operator


def test_the_pods_of_a_held_start_are_left_for_their_node_to_end_and_keep_their_logs() -> None:
    cluster, operator = _never_up()
    cluster.now_s += STARTUP_SPARE_S - OWN_WORD_S
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    cluster.exit("pics-0-e0-0", 137)
    for _ in range(3):
        cluster.now_s += 10_000
        operator.see_all()
        operator.turn()
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert cluster.status["replicaStatuses"][0]["history"]["last"]["reason"] == "StartTimeout"
    cluster.annotate("again")
    operator.settle()
    assert cluster.status["ready"] == "1/1"


def test_a_held_pod_that_its_node_does_not_end_is_deleted_since_it_holds_a_device() -> None:
    cluster, operator = _never_up()
    operator.see_all()
    made = operator.turn()
    grace_s = 5 + 120 + GRACE_S
    assert made.wake_at_s == cluster.now_s - OWN_WORD_S + STARTUP_SPARE_S + grace_s + HELD_GRACE_S
    cluster.now_s = made.wake_at_s
    operator.see_all()
    operator.turn()
    cluster.reap()
    assert cluster.pods == {}
