"""Another spelling of the same wish replaces no pod, and neither does an upgrade from an operator that minded it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stage_api import names
from stage_api.manifest import parse_stage
from stage_api.revision import revision_of, spelled_revision_of
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator


def amounts(cpu: Any, memory: Any) -> dict[str, Any]:
    return {"limits": {"cpu": cpu, "memory": memory}}


SIDECAR = {"name": "proxy", "image": "proxy:1"}


def beside(cpu: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**SIDECAR, "resources": {"limits": {"cpu": cpu}}}]}}


RESPELLED = [
    ({"resources": amounts("1000m", "4096Mi")}, {"resources": amounts(1, "4Gi")}),
    ({"resources": amounts(0.5, "4Gi")}, {"resources": amounts("500m", 4294967296)}),
    ({"resources": {"sharedMemory": "2048Mi"}}, {"resources": {}}),
    ({"topology": {"ranksPerPod": 1}}, {"topology": {}}),
    ({"podTemplate": beside("1000m")}, {"podTemplate": beside(1)}),
    ({"podTemplate": {"metadata": {"labels": {}}, "spec": None}}, {"podTemplate": {}}),
]


def world(**spec: Any) -> tuple[SimCluster, SimOperator]:
    """A stage that is ready."""
    cluster = SimCluster(stage(replicas=2, **spec))
    operator = SimOperator(cluster)
    operator.settle()
    return cluster, operator


def by_an_older_operator(cluster: SimCluster) -> None:
    """Status and pods as one left them that took each spelling for a wish of its own."""
    made = parse_stage({name: value for name, value in cluster.stage.items() if name != "status"})
    text = json.dumps([cluster.status, cluster.pods])
    status, pods = json.loads(text.replace(revision_of(made), spelled_revision_of(made)))
    cluster.stage["status"], cluster.pods = status, pods


@pytest.mark.parametrize(("one", "other"), RESPELLED, ids=json.dumps)
@pytest.mark.parametrize("way", ["there", "back"])
def test_another_spelling_replaces_no_pod(one: dict[str, Any], other: dict[str, Any], way: str) -> None:
    before, after = (one, other) if way == "there" else (other, one)
    cluster, operator = world(**before)
    pods = set(cluster.pods)
    cluster.edit(**after)
    operator.settle()
    assert set(cluster.pods) == pods
    assert cluster.condition("Progressing")["reason"] == "Complete"
    assert operator.told == []


@pytest.mark.parametrize(("one", "other"), RESPELLED, ids=json.dumps)
def test_an_upgrade_replaces_no_pod_and_neither_does_another_spelling_after_it(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    cluster, _ = world(**one)
    by_an_older_operator(cluster)
    pods = set(cluster.pods)
    operator = SimOperator(cluster)
    operator.settle()
    assert set(cluster.pods) == pods
    assert {one["revision"] for one in cluster.status["replicaStatuses"]} == {cluster.status["revision"]}
    cluster.edit(**other)
    operator.settle()
    assert set(cluster.pods) == pods
    assert operator.told == []


def test_another_amount_replaces_the_pods_of_an_upgraded_stage() -> None:
    cluster, _ = world(resources=amounts("1000m", "4Gi"))
    by_an_older_operator(cluster)
    pods = set(cluster.pods)
    operator = SimOperator(cluster)
    operator.settle()
    cluster.edit(resources=amounts("1001m", "4Gi"))
    operator.settle()
    assert not pods & set(cluster.pods)
    made = {pod["metadata"]["labels"][names.LABEL_REVISION] for pod in cluster.pods.values()}
    assert made == {cluster.status["revision"]}


def test_a_restart_that_was_asked_for_before_an_upgrade_is_not_carried_out_again() -> None:
    cluster, operator = world(resources=amounts("1000m", "4Gi"))
    cluster.annotate("once")
    operator.settle()
    by_an_older_operator(cluster)
    pods = set(cluster.pods)
    SimOperator(cluster).settle()
    assert set(cluster.pods) == pods
