"""One cluster for all tests here, with the operator installed by its chart and somebody who asks for pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stage_api import names
from support import live_client, live_stage
from support.live_client import Client, Traffic, TrafficMaker
from support.live_cluster import RESTRICTED, LiveCluster, kubectl, make_namespace, nodes
from support.live_operator import Release
from support.live_stage import LiveStage, Manifest, StageMaker, example


@pytest.fixture(scope="session")
def operator(cluster: LiveCluster) -> Iterator[Release]:
    kubectl("delete", "crd", names.CRD_NAME, "--ignore-not-found")  # other tests may have left theirs
    release = Release(cluster)
    release.install()
    yield release
    release.uninstall()


@pytest.fixture(scope="session")
def client_image(cluster: LiveCluster) -> str:
    """An image with a Python, for who asks for pictures."""
    return f"{cluster.registry}/omnistage-operator:{cluster.image('operator')}"


@pytest.fixture(scope="session")
def client(client_image: str) -> Client:
    make_namespace(live_client.NAMESPACE)
    return Client(client_image, node=nodes()[0])


@pytest.fixture
def make_traffic(client: Client, client_image: str) -> TrafficMaker:
    def make(stage: LiveStage, **how: int) -> Traffic:
        return Traffic(client_image, stage.url, node=nodes()[0], **how)

    return make


@pytest.fixture
def make_stage(operator: Release) -> Iterator[StageMaker]:
    """Makes stages that are gone again after the test."""
    made: list[LiveStage] = []

    def make(
        name: str,
        manifest: Manifest | None = None,
        namespace: str = live_stage.NAMESPACE,
        pods: str = RESTRICTED,
    ) -> LiveStage:
        make_namespace(namespace, pods)
        made.append(LiveStage(name, manifest or example(), namespace))
        return made[-1]

    yield make
    for stage in made:
        stage.delete()
