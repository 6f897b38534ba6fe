"""The operator comes, is replaced, and goes, while stages serve on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stage_api import names
from support import images
from support.live_client import Client, TrafficMaker, kinds
from support.live_cluster import LiveCluster, kubectl, make_namespace, needs_cluster, until
from support.live_operator import Release
from support.live_stage import StageMaker, example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]


def test_stages_serve_on_while_the_operator_is_upgraded_rolled_back_and_uninstalled(
    cluster: LiveCluster, operator: Release, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    stage = make_stage("steady", example(replicas=2)).await_ready("2/2")
    uids = stage.uids()
    traffic = make_traffic(stage)
    traffic.await_more()
    cluster.push(images.image("operator"), "omnistage-operator:next")
    first = {pod["metadata"]["uid"] for pod in operator.pods()}
    try:
        operator.install(image={"tag": "next"}, worker={"defaultImage": "another/worker:next"})
        assert not first & {pod["metadata"]["uid"] for pod in operator.pods() if is_alive(pod)}
        assert is_leading(operator)
        assert stage.uids() == uids
        operator.helm("rollback", operator.name, "--wait", "--timeout=100s")
        assert is_leading(operator)
        assert stage.uids() == uids
        operator.uninstall()
        until(lambda: not operator.leases(), "the Lease to go with it, for which the next one would wait")
        traffic.await_more()
        assert kubectl("get", "crd", names.CRD_NAME)
        assert stage.uids() == uids
    finally:
        operator.install()
    assert is_leading(operator)
    stage.scale(1)
    stage.await_ready("1/1")
    until(lambda: len(stage.pods()) == 1, "the other pod to go")
    assert set(stage.uids()) < set(uids)
    traffic.await_more()
    answers = traffic.end()
    assert set(kinds(answers)) == {(200, "")}, kinds(answers)


def is_alive(pod: dict[str, dict[str, object]]) -> bool:
    """Whether nobody asked it to go."""
    return "deletionTimestamp" not in pod["metadata"]


def is_leading(operator: Release) -> bool:
    """Whether one of its pods acts."""
    return bool(operator.leader())


@pytest.fixture
def houses(operator: Release) -> Iterator[tuple[str, str]]:
    """The only two namespaces that the operator keeps now."""
    houses = ("omnistage-e2e-one", "omnistage-e2e-two")
    for house in houses:
        make_namespace(house)
    operator.install(watch={"namespaces": list(houses)})
    yield houses
    operator.install()


def test_an_operator_for_two_namespaces_keeps_stages_without_rights_to_the_cluster(
    client: Client, operator: Release, houses: tuple[str, str], make_stage: StageMaker
) -> None:
    found = kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
    assert not [name for name in found if operator.name in name]
    stages = [make_stage("shapes", example(), house) for house in houses]
    for stage in stages:
        stage.await_ready()
        client.ask_until_served(stage.url)
    (pod,) = stages[0].pod_names()
    kubectl(f"--namespace={houses[0]}", "delete", "pod", pod, "--wait=false")
    stages[0].await_epoch(1)
    assert stages[1].replica()["epoch"] == 0
