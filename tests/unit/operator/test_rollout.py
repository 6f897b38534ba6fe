"""How replicas are replaced, scaled, moved and suspended: one whole replica at a time."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_operator.decide.rollout import NO_VOLUME_S
from stage_operator.values import CreatePod, DeletePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

OLD = {"device": "cpu"}
NEW = {"device": "cpu", "dtype": "float32"}


def _world(**spec: Any) -> tuple[SimCluster, SimOperator]:
    """A stage that is ready."""
    cluster = SimCluster(stage(**spec))
    operator = SimOperator(cluster)
    operator.settle()
    return cluster, operator


def _turn(operator: SimOperator) -> Any:
    operator.see_all()
    return operator.turn()


def _serving(cluster: SimCluster) -> int:
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
        and "deletionTimestamp" not in pod["metadata"]
        for pod in cluster.pods.values()
    )


def _roll(cluster: SimCluster, operator: SimOperator) -> tuple[int, int]:
    """Step by step to the end of a rollout: the fewest that served, and the most pods that there were."""
    fewest, most = 1000, 0
    for _ in range(80):
        made = _turn(operator)
        fewest, most = min(fewest, _serving(cluster)), max(most, len(cluster.pods))
        cluster.come_up()
        if cluster.condition("Progressing")["reason"] == "Complete" and not made.status_first:
            break
        if made.wake_at_s is not None and made.wake_at_s < cluster.now_s + 700:
            cluster.now_s = max(cluster.now_s + 1, made.wake_at_s)
    return fewest, most


def _revisions(cluster: SimCluster) -> set[str]:
    return {pod["metadata"]["labels"][names.LABEL_REVISION] for pod in cluster.pods.values()}


def test_a_rollout_in_place_takes_one_replica_at_a_time() -> None:
    cluster, operator = _world(replicas=3)
    cluster.edit(engine=NEW)
    assert _roll(cluster, operator) == (2, 3)
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-1-e1-0", "pics-2-e1-0"]
    assert _revisions(cluster) == {cluster.status["revision"]}
    assert cluster.status["restarts"] == 0
    assert [event.reason for event in operator.told] == ["RolloutStarted", "RolloutFinished"]


def test_a_rollout_with_surge_never_has_fewer_replicas_than_asked_for() -> None:
    cluster, operator = _world(replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
    cluster.edit(engine=NEW)
    assert _roll(cluster, operator) == (2, 3)
    assert len(cluster.pods) == 2
    assert _revisions(cluster) == {cluster.status["revision"]}


def test_one_replica_is_replaced_without_a_gap_where_there_is_room() -> None:
    cluster, operator = _world(rollout={"maxSurge": 1, "maxUnavailable": 0})
    cluster.edit(engine=NEW)
    assert _roll(cluster, operator) == (1, 2)
    assert sorted(cluster.pods) == ["pics-1-e0-0"]


def test_one_replica_without_room_for_another_is_replaced_in_its_place_after_a_while() -> None:
    cluster, operator = _world(rollout={"maxSurge": 1, "maxUnavailable": 0})
    cluster.full = set(cluster.nodes)
    cluster.edit(engine=NEW)
    _turn(operator)
    cluster.come_up()
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 60
    assert "pics-0-e0-0" in cluster.pods
    cluster.now_s += 60
    _turn(operator)
    assert "NoRoomToSurge" in [event.reason for event in operator.told]
    cluster.reap()
    cluster.full = set()
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0"]
    assert cluster.status["ready"] == "1/1"


def test_one_replica_whose_namespace_may_have_no_more_pods_is_replaced_in_its_place_after_a_while() -> None:
    cluster, operator = _world(rollout={"maxSurge": 1, "maxUnavailable": 0})
    cluster.quota = 1
    cluster.edit(engine=NEW)
    _turn(operator)
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 60
    assert cluster.condition("Degraded")["reason"] == "PodRefused"
    cluster.now_s += 60
    _turn(operator)
    assert "NoRoomToSurge" in [event.reason for event in operator.told]
    cluster.reap()
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0"]
    assert cluster.status["ready"] == "1/1"


def test_a_pod_that_the_server_does_not_take_is_no_reason_to_give_up_what_serves() -> None:
    cluster, operator = _world(rollout={"maxSurge": 1, "maxUnavailable": 0})
    cluster.judge = lambda pod: "unknown field"
    cluster.edit(engine=NEW)
    for _ in range(10):
        _turn(operator)
        cluster.now_s += 60
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert _serving(cluster) == 1


def test_a_replica_counts_only_once_it_has_been_ready_for_long_enough() -> None:
    cluster, operator = _world(replicas=2, rollout={"minReadySeconds": 100})
    cluster.now_s += 100
    operator.settle()
    cluster.edit(engine=NEW)
    for _ in range(5):
        _turn(operator)
        cluster.come_up()
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e1-0"]
    made = _turn(operator)
    assert made.wake_at_s == cluster.now_s + 100
    cluster.now_s += 100
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-1-e1-0"]


def test_a_partition_keeps_the_lower_replicas_as_they_are() -> None:
    cluster, operator = _world(replicas=3, rollout={"partition": 2})
    cluster.edit(engine=NEW)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0", "pics-2-e1-0"]
    assert cluster.condition("Ready")["status"] == "True"


def test_a_paused_rollout_replaces_nothing_until_it_goes_on() -> None:
    cluster, operator = _world(replicas=2, rollout={"paused": True})
    cluster.edit(engine=NEW)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0"]
    assert cluster.condition("Progressing")["reason"] == "RolloutPaused"
    cluster.edit(rollout={"paused": False})
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-1-e1-0"]


def test_two_failures_of_new_replicas_halt_a_rollout_and_the_old_spec_ends_it() -> None:
    cluster, operator = _world(replicas=3)
    cluster.edit(engine=NEW)
    for epoch in (1, 2):
        while f"pics-2-e{epoch}-0" not in cluster.pods:
            made = _turn(operator)
            cluster.reap()
            cluster.now_s = max(cluster.now_s + 1, min(made.wake_at_s or 0, cluster.now_s + 30))
        cluster.schedule()
        cluster.start()
        cluster.exit(f"pics-2-e{epoch}-0", 70)
    while cluster.status["ready"] != "3/3":
        _turn(operator)
        cluster.come_up()
        cluster.now_s += 10
    assert cluster.condition("Progressing")["reason"] == "RolloutHalted"
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0", "pics-2-e3-0"]
    cluster.edit(engine=OLD)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0", "pics-2-e4-0"]
    assert cluster.condition("Progressing")["reason"] == "Complete"
    assert "RolloutHalted" in [event.reason for event in operator.told]


def test_a_halted_rollout_goes_on_once_the_failed_replica_has_been_ready_for_long() -> None:
    cluster, operator = _world(replicas=2)
    cluster.edit(engine=NEW)
    for epoch in (1, 2):
        while f"pics-1-e{epoch}-0" not in cluster.pods:
            made = _turn(operator)
            cluster.reap()
            cluster.now_s = max(cluster.now_s + 1, min(made.wake_at_s or 0, cluster.now_s + 30))
        cluster.schedule()
        cluster.start()
        cluster.exit(f"pics-1-e{epoch}-0", 70)
    while cluster.status["ready"] != "2/2":
        made = _turn(operator)
        cluster.come_up()
        cluster.now_s += 10
    assert cluster.condition("Progressing")["reason"] == "RolloutHalted"
    cluster.now_s += 600
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-1-e3-0"]


def test_a_rollout_without_progress_is_told_of_once() -> None:
    cluster, operator = _world(replicas=2, rollout={"progressDeadlineSeconds": 300})
    cluster.full = set(cluster.nodes)
    cluster.edit(engine=NEW)
    for _ in range(20):
        _turn(operator)
        cluster.come_up()
        cluster.now_s += 60
    assert cluster.condition("Progressing")["reason"] == "ProgressDeadlineExceeded"
    assert [event.reason for event in operator.told].count("ProgressDeadlineExceeded") == 1
    cluster.full = set()
    operator.settle()
    assert cluster.condition("Progressing")["reason"] == "Complete"


def test_a_spec_that_comes_back_finds_the_pods_that_still_have_it() -> None:
    cluster, operator = _world(replicas=3)
    cluster.edit(engine=NEW)
    _turn(operator)
    cluster.edit(engine=OLD)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0", "pics-1-e0-0", "pics-2-e1-0"]


def test_fewer_replicas_take_what_is_not_ready_first_and_then_the_highest_index() -> None:
    cluster, operator = _world(replicas=3)
    cluster.unready("pics-0-e0-0")
    _turn(operator)
    cluster.edit(replicas=2)
    _turn(operator)
    cluster.reap()
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-1-e0-0", "pics-2-e0-0"]
    cluster.edit(replicas=1)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-1-e0-0"]
    assert cluster.status["restarts"] == 0


def test_a_stage_scaled_to_nothing_and_back_never_gives_a_pods_name_twice() -> None:
    cluster, operator = _world(replicas=2)
    cluster.edit(replicas=0)
    operator.settle()
    assert cluster.pods == {}
    assert (cluster.status["ready"], cluster.status["replicas"]) == ("0/0", 0)
    cluster.edit(replicas=2)
    operator.settle()
    created = [action.manifest["metadata"]["name"] for action in cluster.log if isinstance(action, CreatePod)]
    assert len(created) == len(set(created)) == 4
    assert cluster.status["ready"] == "2/2"


def test_a_suspended_stage_has_no_pods_and_comes_back_with_a_clean_slate() -> None:
    cluster, operator = _world(replicas=2)
    cluster.exit("pics-0-e0-0", 64)
    operator.settle()
    cluster.edit(suspend=True)
    operator.settle()
    assert cluster.pods == {}
    assert cluster.condition("Suspended")["status"] == "True"
    assert (cluster.status["phase"], cluster.condition("Ready")["reason"]) == ("Suspended", "Suspended")
    cluster.edit(suspend=False)
    operator.settle()
    assert cluster.status["ready"] == "2/2"
    assert cluster.condition("Failed")["status"] == "False"
    told = {event.reason: event.message for event in operator.told}
    assert "spec.suspend is true" in told["Suspended"]
    assert "spec.suspend is false" in told["Resumed"]


def test_a_restart_request_replaces_every_replica_as_a_rollout_does() -> None:
    cluster, operator = _world(replicas=2)
    cluster.annotate("now")
    assert _roll(cluster, operator) == (1, 2)
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-1-e1-0"]
    assert cluster.status["observedRestart"] == "now"
    cluster.log.clear()
    operator.settle()
    assert not [action for action in cluster.log if isinstance(action, CreatePod)]


def test_a_replica_of_several_pods_leaves_a_node_that_is_being_emptied_as_one() -> None:
    world = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
    cluster, operator = _world(replicas=2, **world)
    node = cluster.pods["pics-0-e0-1"]["spec"]["nodeName"]
    on_it = {name for name, pod in cluster.pods.items() if pod["spec"]["nodeName"] == node}
    cluster.cordon(node)
    fewest, _ = _roll(cluster, operator)
    operator.settle()
    assert fewest >= 2
    assert not {name for name, pod in cluster.pods.items() if pod["spec"]["nodeName"] == node}
    assert on_it
    assert (cluster.status["ready"], cluster.status["restarts"]) == ("2/2", 0)
    assert "ReplicaMoved" in [event.reason for event in operator.told]


def test_a_cordon_alone_takes_no_replica_of_one_pod_away() -> None:
    cluster, operator = _world(replicas=1)
    for node in list(cluster.nodes):
        cluster.cordon(node)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert cluster.status["ready"] == "1/1"


def test_another_number_of_ranks_gives_exactly_the_pods_of_the_new_spec() -> None:
    cluster, operator = _world(replicas=1)
    for data, per_pod in ((4, 2), (2, 1), (1, 1), (4, 1)):
        cluster.edit(parallelism={"data": data}, topology={"ranksPerPod": per_pod})
        operator.settle()
        assert len(cluster.pods) == data // per_pod
        epochs = {pod["metadata"]["labels"][names.LABEL_EPOCH] for pod in cluster.pods.values()}
        assert len(epochs) == 1
        assert cluster.status["ready"] == "1/1"


def test_a_spec_edited_while_its_pods_are_being_made_leaves_none_of_the_old_ones() -> None:
    world = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
    cluster = SimCluster(stage(**world))
    operator = SimOperator(cluster)
    cluster.judge = lambda pod: "no room in the quota" if pod["metadata"]["name"] == "pics-0-e0-1" else None
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    cluster.edit(engine=NEW)
    operator.settle()
    assert sorted(cluster.pods) == ["pics-0-e1-0", "pics-0-e1-1"]
    assert cluster.status["restarts"] == 0


def _without_volume(cluster: SimCluster) -> None:
    """Pods on a node get no sandbox, since a volume of theirs is attached elsewhere."""
    for pod in cluster.pods.values():
        if pod["status"]["phase"] == "Pending" and pod["spec"].get("nodeName"):
            pod["status"]["conditions"] = [
                {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": None}
            ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_replica_more_that_gets_no_volume_is_given_up_so_that_the_old_one_can_let_go_of_it(
    replicas: int,
) -> None:
    cluster = SimCluster(stage(replicas=replicas, rollout={"maxSurge": 1, "maxUnavailable": 0}))
    operator = SimOperator(cluster)
    operator.settle()
    cluster.edit(engine={"device": "cpu", "dtype": "float32"})
    operator.turn()
    cluster.schedule()
    surge = [name for name, pod in cluster.pods.items() if pod["status"]["phase"] == "Pending"]
    assert len(surge) == 1
    _without_volume(cluster)
    operator.see_all()
    made = operator.turn()
    assert made.wake_at_s == cluster.now_s + NO_VOLUME_S
    cluster.now_s += NO_VOLUME_S - 1
    operator.see_all()
    assert not [action for action in operator.turn().actions if isinstance(action, DeletePod)]
    cluster.now_s += 1
    operator.see_all()
    gone = {action.name for action in operator.turn().actions if isinstance(action, DeletePod)}
    assert surge[0] in gone
    assert len(gone) == 2, "and one of the old ones, whose place is taken"
    operator.settle()
    assert cluster.status["updatedReplicas"] == replicas
    assert cluster.status["phase"] == "Ready"


def test_a_replica_more_whose_image_is_still_being_pulled_is_waited_for() -> None:
    cluster = SimCluster(stage(rollout={"maxSurge": 1, "maxUnavailable": 0}))
    operator = SimOperator(cluster)
    operator.settle()
    cluster.edit(engine={"device": "cpu", "dtype": "float32"})
    operator.turn()
    cluster.schedule()
    for pod in cluster.pods.values():
        if pod["status"]["phase"] == "Pending":
            pod["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "True"}]
    operator.see_all()
    operator.turn()
    cluster.now_s += 10 * NO_VOLUME_S
    operator.see_all()
    assert not [action for action in operator.turn().actions if isinstance(action, DeletePod)]
