"""The pods of a replica get their nodes together or not at all, where the cluster can do that."""

from __future__ import annotations

import pytest

from support.live_client import Client
from support.live_cluster import SEAT, kubectl, needs_cluster, nodes, seat, until
from support.live_stage import READY_S, LiveStage, Manifest, StageMaker, example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]


def is_placed(pod: Manifest) -> bool:
    """Whether it has got a node."""
    return bool(pod["spec"].get("nodeName"))


def has_no_place(stage: LiveStage) -> bool:
    """Whether the scheduler has said of both pods that it finds none."""
    told = [
        condition["reason"]
        for pod in stage.pods()
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled"
    ]
    return len(told) == 2 and all(reason != "Scheduled" for reason in told)


def test_no_pod_of_a_replica_takes_a_node_before_there_is_one_for_all(
    client: Client, make_stage: StageMaker
) -> None:
    if "podgroups.scheduling.k8s.io" not in kubectl("api-resources", "-o", "name").split():
        pytest.skip("NOT TESTED: this cluster has no PodGroups")
    first, second = nodes()[1:3]
    for node in nodes():
        seat(node, int(node == first))
    manifest = example("shapes-cfg2", topology={"ranksPerPod": 1}, resources={"limits": {SEAT: 1}})
    stage = make_stage("gang", manifest)
    until(lambda: has_no_place(stage), "the scheduler to find no place for two pods")
    assert not any(is_placed(pod) for pod in stage.pods())
    seat(second, 1)
    stage.await_ready(within_s=2 * READY_S)
    assert {pod["spec"]["nodeName"] for pod in stage.pods()} == {first, second}
    client.ask_until_served(stage.url)
