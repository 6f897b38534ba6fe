"""What nodes and the control plane do to stages."""

from __future__ import annotations

import signal
import time

import pytest

from support.live_client import PROMPT, Client, TrafficMaker, kinds
from support.live_cluster import LiveCluster, kubectl, needs_cluster, needs_own_cluster, nodes, until
from support.live_stage import READY_S, LiveStage, StageMaker, example, on_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]

DOWN_S = 30
"""How long the API server is away."""


def node_of(stage: LiveStage, pod: int = 0) -> str:
    """Where a pod of it runs."""
    return str(stage.pods()[pod]["spec"]["nodeName"])


def test_a_replica_spans_two_nodes_and_ends_and_comes_back_as_one(
    client: Client, make_stage: StageMaker
) -> None:
    pair = example("shapes-cfg2", topology={"ranksPerPod": 1}, podTemplate=on_nodes(*nodes()[1:3]))
    stage = make_stage("pair", pair).await_ready(within_s=2 * READY_S)
    assert node_of(stage, 0) != node_of(stage, 1)
    assert client.ask(stage.url).shows(PROMPT)
    stage.signal_rank("pair-0-e0-1", signal.SIGKILL, rank=1)
    stage.await_epoch(1, within_s=2 * READY_S)
    assert stage.pod_names() == ["pair-0-e1-0", "pair-0-e1-1"]
    assert stage.status()["restarts"] == 1
    client.ask_until_served(stage.url)


def test_when_one_pod_of_two_is_deleted_what_runs_is_finished(
    make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    pair = example("shapes-cfg2", topology={"ranksPerPod": 1}, podTemplate=on_nodes(*nodes()[1:3]))
    stage = make_stage("leaving", pair).await_ready(within_s=2 * READY_S)
    for epoch, ordinal in enumerate((0, 1)):
        traffic = make_traffic(stage, workers=2, steps=40)
        traffic.await_more(2)
        pod = f"leaving-0-e{epoch}-{ordinal}"
        kubectl(f"--namespace={stage.namespace}", "delete", "pod", pod, "--wait=false")
        stage.await_epoch(epoch + 1, within_s=2 * READY_S)
        found = kinds(traffic.end())
        assert not [kind for kind in found if kind[1] in ("engine_dead", "engine_hung")], found
    assert stage.status()["disruptions"] == stage.status()["restarts"] == 2


@needs_own_cluster
def test_a_node_that_loses_power_under_one_pod_of_two_is_not_counted(
    cluster: LiveCluster, make_stage: StageMaker
) -> None:
    pair = example(
        "shapes-cfg2",
        topology={"ranksPerPod": 1},
        podTemplate=on_nodes(*nodes()[1:3]),
        failurePolicy={"maxRestarts": 0},
    )
    stage = make_stage("halved", pair).await_ready(within_s=2 * READY_S)
    node = node_of(stage, 1)
    cluster.stop(node)
    try:
        until(lambda: stage.replica().get("history", {}).get("last"), "the end to be judged")
        last = stage.replica()["history"]["last"]
        assert (last["reason"], last["node"]) == ("NodeLost", node)
        assert stage.condition("Failed")["status"] == "False"
    finally:
        cluster.start(node)
    until(lambda: is_ready(node), f"{node} to be ready")
    stage.await_epoch(1, within_s=2 * READY_S)


def is_ready(node: str) -> bool:
    """Whether it says so."""
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return kubectl("get", "node", node, "-o", path) == "True"


@needs_own_cluster
def test_a_node_that_loses_power_loses_its_replicas_and_nothing_is_left_when_it_is_back(
    cluster: LiveCluster, client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("powerless", example(podTemplate=on_nodes(*nodes()[1:3]))).await_ready()
    node = node_of(stage)
    cluster.stop(node)
    try:
        stage.await_epoch(1, within_s=2 * READY_S)
        client.ask_until_served(stage.url)
    finally:
        cluster.start(node)
    until(lambda: is_ready(node), f"{node} to be ready")
    until(lambda: stage.pod_names() == ["powerless-0-e1-0"], "the old pod to go")
    assert node_of(stage) != node
    assert stage.status()["disruptions"] == 1
    assert stage.replica()["history"]["last"]["reason"] == "NodeLost"
    stage.await_epoch(1)


@needs_own_cluster
def test_a_node_that_was_off_too_shortly_to_be_missed_is_noticed_by_its_pods(
    cluster: LiveCluster, client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("blinked", example(podTemplate=on_nodes(*nodes()[1:3]))).await_ready()
    node = node_of(stage)
    cluster.stop(node)
    cluster.start(node)
    stage.await_epoch(1, within_s=2 * READY_S)
    until(lambda: stage.pod_names() == ["blinked-0-e1-0"], "the old pod to go")
    client.ask_until_served(stage.url)


def test_a_drained_node_is_left_and_no_request_fails(
    client: Client, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    manifest = example(replicas=2, podTemplate=on_nodes(*nodes()[1:3]))
    stage = make_stage("drained", manifest).await_ready("2/2")
    node = node_of(stage)
    traffic = make_traffic(stage, workers=2)
    traffic.await_more()
    try:
        kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=55s")
        stage.await_ready("2/2", within_s=2 * READY_S)
        assert node not in {pod["spec"]["nodeName"] for pod in stage.pods()}
    finally:
        kubectl("uncordon", node)
    traffic.await_more()
    answers = traffic.end()
    assert set(kinds(answers)) == {(200, "")}, kinds(answers)
    assert all(not replica.get("history", {}).get("recent") for replica in stage.status()["replicaStatuses"])


def test_a_cordoned_node_keeps_its_replica_and_gets_no_new_life(
    client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("closed", example(podTemplate=on_nodes(*nodes()[1:3]))).await_ready()
    (before,), node = stage.uids(), node_of(stage)
    kubectl("cordon", node)
    try:
        client.ask_until_served(stage.url)
        assert stage.uids() == [before]
        stage.signal_rank("closed-0-e0-0", signal.SIGKILL)
        stage.await_epoch(1)
        assert node_of(stage) != node
    finally:
        kubectl("uncordon", node)


def test_a_replica_of_two_pods_leaves_a_cordoned_node_as_one(make_stage: StageMaker) -> None:
    pair = example("shapes-cfg2", topology={"ranksPerPod": 1}, podTemplate=on_nodes(*nodes()))
    stage = make_stage("moved", pair).await_ready(within_s=2 * READY_S)
    node = node_of(stage, 1)
    kubectl("cordon", node)
    try:
        stage.await_epoch(1, within_s=2 * READY_S)
        assert stage.pod_names() == ["moved-0-e1-0", "moved-0-e1-1"]
        assert node not in {node_of(stage, 0), node_of(stage, 1)}
        assert stage.status().get("restarts", 0) == 0
    finally:
        kubectl("uncordon", node)


@needs_own_cluster
def test_while_the_api_server_is_down_stages_serve_and_what_ended_comes_back_after_it(
    cluster: LiveCluster, client: Client, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    served, hurt = make_stage("served"), make_stage("hurt")
    served.await_ready()
    hurt.await_ready()
    (victim,) = hurt.pods()
    uids = served.uids()
    traffic = make_traffic(served)
    traffic.await_more()
    cluster.stop("apiserver")
    try:
        assert cluster.kill(victim)
        time.sleep(DOWN_S)
    finally:
        cluster.start("apiserver")
    hurt.await_epoch(1, within_s=2 * READY_S)
    assert hurt.status()["restarts"] == 1
    assert served.uids() == uids
    traffic.await_more()
    answers = traffic.end()
    assert set(kinds(answers)) == {(200, "")}, kinds(answers)
    client.ask_until_served(hurt.url)
