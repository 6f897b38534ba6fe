"""One cluster for all tests here, with the operator installed by its chart and somebody who asks for pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import live_client, live_stage
from support.live_client import Client, Traffic, TrafficMaker
from support.live_cluster import LiveCluster, make_namespace, nodes, running_cluster
from support.live_operator import Release
from support.live_stage import LiveStage, Manifest, StageMaker, example


@pytest.fixture(scope="session")
def cluster() -> Iterator[LiveCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def operator(cluster: LiveCluster) -> Iterator[Release]:
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

    def make(name: str, manifest: Manifest | None = None, namespace: str = live_stage.NAMESPACE) -> LiveStage:
        make_namespace(namespace)
        made.append(LiveStage(name, manifest or example(), namespace))
        return made[-1]

    yield make
    for stage in made:
        stage.delete()
