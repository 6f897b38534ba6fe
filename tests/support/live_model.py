"""A model where stages on a cluster may take it from: a node's folder, a volume, an image, a hub.

It is the checkpoint of the embedded model, so that pictures can be judged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stage_api import names
from support import fake_hub, images
from support.live_client import plain_pod
from support.live_cluster import LiveCluster, kubectl
from unit.api.bad_stages import ROOT

CHECKPOINT = ROOT / "models" / "shapes" / "checkpoint"
IN_WORKER = f"{names.EMBEDDED_DIR}/shapes/checkpoint"
FOLDER = "/tmp/omnistage-e2e"
MODEL = "shapes"
"""Folder of the model in `FOLDER` of a node, and in the volume and the image."""
REPO = "team/shapes"
REVISION = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_right"
HUB_PORT = 8080
LIMIT_S = 90


class NodeFolder:
    """A folder of one node that has the model in it, and room for whoever wants to write."""

    def __init__(self, worker: str, node: str, namespace: str) -> None:
        self.node = node
        self._at = f"--namespace={namespace}"
        pod = plain_pod("filler", worker, node)
        (container,) = pod["spec"]["containers"]
        container["command"] = ["sleep", "infinity"]
        container["securityContext"] = {"runAsUser": 0}
        container["volumeMounts"] = [{"name": "node", "mountPath": "/node"}]
        pod["spec"]["securityContext"] = {}
        pod["spec"]["volumes"] = [{"name": "node", "hostPath": {"path": str(Path(FOLDER).parent)}}]
        pod["metadata"]["namespace"] = namespace
        kubectl("apply", "-f", "-", stdin=pod)
        kubectl(self._at, "wait", "pod/filler", "--for=condition=Ready", f"--timeout={LIMIT_S}s")
        self._run(
            f"mkdir -p {self._inside}/cache && cp -r {IN_WORKER} {self._inside}/{MODEL} "
            f"&& chmod -R a+rX {self._inside} && chmod a+rwx {self._inside}/cache"
        )

    @property
    def _inside(self) -> str:
        return f"/node/{Path(FOLDER).name}"

    def _run(self, command: str) -> None:
        kubectl(self._at, "exec", "filler", "--", "sh", "-c", command)

    def make_claim(self, name: str, namespace: str) -> None:
        """A claim that has got a volume, which is this folder."""
        volume = f"{namespace}-{name}"
        here = {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self.node]}]
        }
        common = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeMode": "Filesystem",
        }
        spec = {
            **common,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": FOLDER},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"name": name, "namespace": namespace},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        }
        wanted = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        _apply("PersistentVolume", {"name": volume}, spec)
        _apply("PersistentVolumeClaim", {"name": name, "namespace": namespace}, wanted)

    def remove(self, *claims: tuple[str, str]) -> None:
        """The folder and the volumes of these claims, each a name and a namespace."""
        for name, namespace in claims:
            kubectl(f"--namespace={namespace}", "delete", "pvc", name, "--ignore-not-found")
            kubectl("delete", "pv", f"{namespace}-{name}", "--ignore-not-found")
        self._run(f"rm -rf {self._inside}")
        kubectl(self._at, "delete", "pod", "filler", "--wait=false")


def _apply(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
    kubectl("apply", "-f", "-", stdin=manifest)


def push_model_image(cluster: LiveCluster) -> str:
    """An image in which nothing is but the model; its name for a node."""
    name, tag = "omnistage-model-shapes", "1"
    container = images.buildah("from", "scratch")
    try:
        images.buildah("copy", container, str(CHECKPOINT), f"/{MODEL}")
        images.buildah("commit", container, f"localhost/{name}:{tag}")
    finally:
        images.buildah("rm", container)
    cluster.push(f"localhost/{name}:{tag}", f"{name}:{tag}")
    return f"{cluster.registry}/{name}:{tag}"


class HubPod:
    """A hub that keeps the model for who has the token."""

    def __init__(self, worker: str, namespace: str) -> None:
        self._at = (f"--namespace={namespace}", "hub")
        order = {
            "repo": REPO,
            "revision": REVISION,
            "token": TOKEN,
            "folder": IN_WORKER,
            "port": HUB_PORT,
        }
        program = Path(fake_hub.__file__).read_text(encoding="utf-8")
        pod = plain_pod("hub", worker)
        pod["metadata"]["namespace"] = namespace
        pod["spec"]["containers"][0]["command"] = ["python", "-c", program, json.dumps(order)]
        kubectl("apply", "-f", "-", stdin=pod)
        kubectl(self._at[0], "wait", "pod/hub", "--for=condition=Ready", f"--timeout={LIMIT_S}s")
        address = kubectl(self._at[0], "get", "pod", "hub", "-o", "jsonpath={.status.podIP}")
        self.url = f"http://{address}:{HUB_PORT}"

    def downloads(self) -> int:
        """How many files it was asked for."""
        return sum(line.startswith("GET") and "/resolve/" in line for line in self._logs())

    def _logs(self) -> list[str]:
        return kubectl("logs", *self._at).splitlines()

    def remove(self) -> None:
        kubectl("delete", "pod", *self._at[::-1], "--wait=false")


def make_token(namespace: str, name: str, token: str) -> None:
    """A Secret with it."""
    metadata = {"name": name, "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": token}}
    kubectl("apply", "-f", "-", stdin=secret)
