"""What a stage has beside its pods, and when what is wanted no more may go."""

from __future__ import annotations

from typing import Any

import pytest

from stage_operator.values import Api, Apply, ChildKey, CreateOnce, CreatePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

TWO_PODS = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
GANGS = Api(pod_group="scheduling.k8s.io/v1beta1")


def _world(api: Api | None = None, **spec: Any) -> tuple[SimCluster, SimOperator]:
    """A stage that is ready."""
    cluster = SimCluster(stage(**spec))
    operator = SimOperator(cluster, api)
    operator.settle()
    return cluster, operator


def _turn(operator: SimOperator) -> Any:
    operator.see_all()
    return operator.turn()


def _names(cluster: SimCluster, kind: str) -> list[str]:
    return sorted(key.name for key in cluster.children if key.kind == kind)


def test_what_pods_need_is_there_before_them() -> None:
    cluster = SimCluster(stage(**TWO_PODS))
    made = SimOperator(cluster, GANGS).decide()
    kinds = [type(action) for action in made.actions]
    last_need = max(i for i, kind in enumerate(kinds) if kind in (Apply, CreateOnce))
    assert last_need < kinds.index(CreatePod)


def test_a_config_stays_until_every_pod_that_may_read_it_is_gone() -> None:
    cluster, operator = _world(replicas=2)
    (old,) = _names(cluster, "ConfigMap")
    cluster.now_s += 10
    cluster.edit(engine={"device": "cpu", "dtype": "float32"})
    _turn(operator)
    assert len(_names(cluster, "ConfigMap")) == 2
    while any("e0" in name for name in cluster.pods):
        assert old in _names(cluster, "ConfigMap")
        _turn(operator)
        cluster.come_up()
        cluster.now_s += 10
    operator.settle()
    assert len(_names(cluster, "ConfigMap")) == 1
    assert old not in _names(cluster, "ConfigMap")


def test_a_life_of_several_pods_has_a_group_of_its_own_for_as_long_as_its_pods() -> None:
    cluster, operator = _world(GANGS, **TWO_PODS)
    assert _names(cluster, "PodGroup") == ["pics-0-e0"]
    cluster.exit("pics-0-e0-1", 137)
    _turn(operator)
    assert sorted(cluster.pods) == ["pics-0-e0-0"]
    assert "pics-0-e0" in _names(cluster, "PodGroup")
    operator.settle()
    assert _names(cluster, "PodGroup") == ["pics-0-e1"]


def test_a_cluster_that_learns_of_groups_later_gives_none_to_lives_without() -> None:
    cluster, operator = _world(Api(), **TWO_PODS)
    operator.api = GANGS
    operator.settle()
    assert _names(cluster, "PodGroup") == []


def test_each_replica_of_several_pods_has_its_budget_under_its_own_index() -> None:
    cluster, operator = _world(replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0}, **TWO_PODS)
    cluster.edit(engine={"device": "cpu", "dtype": "float32"})
    operator.settle()
    indexes = {one["index"] for one in cluster.status["replicaStatuses"]}
    assert _names(cluster, "PodDisruptionBudget") == sorted(f"pics-{index}" for index in indexes)


def test_another_shape_of_replicas_leaves_no_children_of_the_old_one() -> None:
    cluster, operator = _world(**TWO_PODS)
    assert "pics-ranks" in _names(cluster, "Service")
    cluster.now_s += 10
    cluster.edit(parallelism={"data": 1})
    operator.settle()
    assert "pics-ranks" not in _names(cluster, "Service")
    assert _names(cluster, "PodDisruptionBudget") == ["pics"]


def test_a_child_of_somebody_else_is_never_removed() -> None:
    cluster, operator = _world()
    key = ChildKey("Service", "other")
    labels = {"omnistage.io/stage": "pics"}
    cluster.children[key] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "other", "uid": "x", "labels": labels, "ownerReferences": [{"uid": "y"}]},
    }
    operator.settle()
    assert key in cluster.children


@pytest.mark.parametrize("world", [{}, TWO_PODS])
def test_keys_are_made_only_where_replicas_span_pods(world: dict[str, Any]) -> None:
    made = SimOperator(SimCluster(stage(**world))).decide()
    assert [type(action) for action in made.actions].count(CreateOnce) == (1 if world else 0)


def test_a_spec_that_asks_for_what_this_operator_does_not_give_is_refused() -> None:
    cluster = SimCluster(stage(gang={"mode": "Volcano"}, **TWO_PODS))
    operator = SimOperator(cluster)
    operator.turn()
    assert cluster.condition("Accepted")["status"] == "False"
    assert "spec.gang.mode" in cluster.condition("Accepted")["message"]
    assert cluster.pods == {}
