"""Where a stage's model may come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import live_stage
from support.live_client import PROMPT, Client
from support.live_cluster import PRIVILEGED, LiveCluster, kubectl, make_namespace, needs_cluster, nodes, until
from support.live_model import (
    FOLDER,
    MODEL,
    REPO,
    REVISION,
    TOKEN,
    HubPod,
    NodeFolder,
    make_token,
    push_model_image,
)
from support.live_operator import Release
from support.live_stage import READY_S, LiveStage, Manifest, StageMaker, example, on_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]

OPEN = "omnistage-e2e-open"
CLAIM = "models"


def has_image_volumes() -> bool:
    """Whether the API server keeps a volume that is an image. An older one makes an empty folder of it."""
    volume = {"name": "model", "image": {"reference": "registry.example/model:1"}}
    container = {"name": "c", "image": "registry.example/c:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"containers": [container], "volumes": [volume]},
    }
    order = ("create", "--dry-run=server", f"--namespace={OPEN}", "-o", "jsonpath={.spec.volumes[0].image}")
    return bool(kubectl(*order, "-f", "-", stdin=pod))


@pytest.fixture(scope="module")
def worker(cluster: LiveCluster) -> str:
    return f"{cluster.registry}/omnistage-worker:{cluster.image('worker')}"


@pytest.fixture(scope="module")
def folder(worker: str) -> Iterator[NodeFolder]:
    make_namespace(OPEN, PRIVILEGED)
    make_namespace(live_stage.NAMESPACE)
    folder = NodeFolder(worker, nodes()[1], OPEN)
    folder.make_claim(CLAIM, live_stage.NAMESPACE)
    yield folder
    folder.remove((CLAIM, live_stage.NAMESPACE))


@pytest.fixture(scope="module")
def hub(worker: str) -> Iterator[HubPod]:
    make_namespace(live_stage.NAMESPACE)
    hub = HubPod(worker, live_stage.NAMESPACE)
    yield hub
    hub.remove()


def from_source(source: Manifest, node: str | None = None) -> Manifest:
    """The example with another source, perhaps on one node only."""
    manifest = example(podTemplate={} if node is None else on_nodes(node))
    manifest["spec"]["model"] = {"source": source}
    return manifest


def from_hub(hub: HubPod, secret: str, **more: object) -> Manifest:
    """The example, fetched with a token."""
    source = {"repo": REPO, "revision": REVISION, "endpoint": hub.url, "tokenSecretRef": {"name": secret}}
    return {"huggingFace": source | more}


def test_a_model_on_a_volume_is_served(folder: NodeFolder, client: Client, make_stage: StageMaker) -> None:
    source = {"persistentVolumeClaim": {"claimName": CLAIM, "subPath": MODEL}}
    stage = make_stage("claimed", from_source(source)).await_ready()
    assert client.ask(stage.url).shows(PROMPT)
    until(lambda: stage.condition("FactsKnown").get("status") == "True", "the pod to tell what it can do")
    assert stage.status()["facts"]["capability"]["batches"] is True


def test_a_model_in_an_image_of_its_own_is_served_where_images_are_mounted(
    cluster: LiveCluster, folder: NodeFolder, client: Client, make_stage: StageMaker
) -> None:
    source = {"image": {"reference": push_model_image(cluster), "subPath": MODEL}}
    stage = make_stage("pictured", from_source(source))
    if not has_image_volumes():
        until(lambda: stage.condition("Accepted").get("status") == "False", "the stage to be refused")
        assert "mounts no images" in stage.condition("Accepted")["message"]
        return
    stage.await_ready()
    assert client.ask(stage.url).shows(PROMPT)


def test_a_model_in_a_folder_of_the_node_is_served_where_the_operator_lets_it(
    operator: Release, folder: NodeFolder, client: Client, make_stage: StageMaker
) -> None:
    source = {"hostPath": {"path": f"{FOLDER}/{MODEL}"}}
    stage = make_stage("local", from_source(source, folder.node), OPEN, PRIVILEGED)
    until(lambda: stage.condition("Accepted").get("status") == "False", "the stage to be refused")
    assert "hostPath" in stage.condition("Accepted")["message"]
    operator.install(allowHostPath=True)
    try:
        stage.await_ready()
        assert client.ask(stage.url).shows(PROMPT)
    finally:
        stage.delete()
        operator.install()


def test_a_model_of_the_hub_is_fetched_once_into_a_volume_that_keeps_it(
    folder: NodeFolder, hub: HubPod, client: Client, make_stage: StageMaker
) -> None:
    make_token(live_stage.NAMESPACE, "right", TOKEN)
    cache = {"claimName": CLAIM, "subPath": "cache"}
    stage = make_stage("fetched", from_source(from_hub(hub, "right", cache=cache))).await_ready()
    assert client.ask(stage.url).shows(PROMPT)
    fetched = hub.downloads()
    assert fetched > 0
    kubectl(f"--namespace={stage.namespace}", "delete", "pod", *stage.pod_names(), "--wait=false")
    stage.await_epoch(1)
    assert hub.downloads() == fetched


def test_a_token_that_is_missing_or_that_the_hub_refuses_is_told_and_a_right_one_mends_it(
    hub: HubPod, client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("locked", from_source(from_hub(hub, "changed")))
    until(lambda: stage.condition("Degraded").get("reason") == "FailedMount", "it to be told", within_s=60)
    assert '"changed" not found' in stage.condition("Degraded")["message"]
    make_token(live_stage.NAMESPACE, "changed", "hf_wrong")
    until(lambda: stage.condition("Failed").get("status") == "True", "the stage to be held")
    assert "token" in stage.condition("Failed")["message"]
    assert TOKEN not in stage.story()
    make_token(live_stage.NAMESPACE, "changed", TOKEN)
    restart(stage)
    stage.await_ready(within_s=2 * READY_S)
    client.ask_until_served(stage.url)


def restart(stage: LiveStage) -> None:
    """Ask for a new life."""
    kubectl(
        f"--namespace={stage.namespace}",
        "annotate",
        live_stage.names.PLURAL,
        stage.name,
        f"{live_stage.names.ANNOTATION_RESTART}=please",
    )
