"""Replicas of a stage on a cluster, reached by the API server's port-forward as its user.

Needs the package `kubernetes`, which knows kubeconfigs of all kinds; nothing else of the command does.
"""

from __future__ import annotations

import base64
import socket
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from stage_api import names
from stage_runtime.core.errors import StageError
from stage_runtime.remote_control.client import Connect, ControlClient

MISSING = 'control on a cluster needs the Python package kubernetes: pip install "omnistage[cluster]"'


class NoSuchStage(StageError):
    """There is no such stage, it can't be steered, or what steers it can't be read."""


class Pod(NamedTuple):
    """The first pod of a replica, which takes its control calls."""

    replica: int
    name: str


class Cluster(Protocol):
    """What is asked of a cluster."""

    namespace: str

    def stage(self, name: str) -> Mapping[str, Any]:
        """The stage as JSON has it. Raises: NoSuchStage."""

    def pods(self, stage: str) -> list[Mapping[str, Any]]:
        """The first pods of its replicas."""

    def secret(self, name: str) -> Mapping[str, str]:
        """What a Secret holds, in base64. Raises: NoSuchStage."""

    def connect(self, pod: str) -> socket.socket:
        """A connection to the control port of a pod. Raises: NoSuchStage."""


def replicas_on(cluster: Cluster, stage: str, token: str | None) -> dict[int, ControlClient]:
    """A client for each replica that runs. `token`: None to read the stage's own Secret.

    Raises: NoSuchStage.
    """
    control = cluster.stage(stage).get("spec", {}).get("control") or {}
    if not control.get("enabled"):
        raise NoSuchStage(
            f"{stage} in {cluster.namespace}: spec.control.enabled is false, so it can't be steered"
        )
    if token is None:
        token = _token(cluster, control["tokenSecretRef"])
    connect: dict[int, Connect] = {
        pod.replica: partial(cluster.connect, pod.name) for pod in latest(cluster.pods(stage))
    }
    return {replica: ControlClient(connect[replica], token) for replica in sorted(connect)}


def latest(pods: list[Mapping[str, Any]]) -> list[Pod]:
    """Of each replica the pod of its latest life that is running and not told to end."""
    found: dict[int, tuple[int, str]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if pod["metadata"].get("deletionTimestamp") or pod.get("status", {}).get("phase") != "Running":
            continue
        replica, epoch = int(labels[names.LABEL_REPLICA]), int(labels[names.LABEL_EPOCH])
        found[replica] = max(found.get(replica, (-1, "")), (epoch, pod["metadata"]["name"]))
    return [Pod(replica, name) for replica, (_, name) in sorted(found.items())]


def _token(cluster: Cluster, ref: Mapping[str, str]) -> str:
    secret, key = cluster.secret(ref["name"]), ref.get("key", names.TOKEN_FILE)
    if key not in secret:
        raise NoSuchStage(f"Secret {ref['name']} in {cluster.namespace} has no key {key}")
    return base64.b64decode(secret[key]).decode("latin-1").strip()


class KubernetesCluster:
    """Implements `Cluster` by a kubeconfig, or in a pod by its ServiceAccount."""

    def __init__(self, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
        """Raises: NoSuchStage where neither can be had, or the package isn't installed."""
        try:
            from kubernetes import client, config, stream
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise NoSuchStage(MISSING) from error
        self._client, self._stream, self._unreachable = client, stream, HTTPError
        try:
            config.load_config(config_file=kubeconfig, context=context)
        except Exception as error:
            raise NoSuchStage(f"no cluster can be reached: {error}") from error
        self.namespace = namespace or _namespace_of(config, kubeconfig, context)

    def stage(self, name: str) -> Mapping[str, Any]:
        """The stage as JSON has it."""
        with self._told(f"stage {name}"):
            api = self._client.CustomObjectsApi()
            found = api.get_namespaced_custom_object(
                names.GROUP, names.VERSION, self.namespace, names.PLURAL, name
            )
            return cast("Mapping[str, Any]", found)

    def pods(self, stage: str) -> list[Mapping[str, Any]]:
        """The first pods of its replicas."""
        with self._told(f"pods of {stage}"):
            selector = f"{names.LABEL_STAGE}={stage},{names.LABEL_RANK0}=true"
            api = self._client.CoreV1Api()
            found = api.list_namespaced_pod(self.namespace, label_selector=selector)
            return [api.api_client.sanitize_for_serialization(pod) for pod in found.items]

    def secret(self, name: str) -> Mapping[str, str]:
        """What a Secret holds, in base64."""
        with self._told(f"Secret {name}"):
            return dict(self._client.CoreV1Api().read_namespaced_secret(name, self.namespace).data or {})

    def connect(self, pod: str) -> socket.socket:
        """A connection to the control port of a pod, by way of the API server and the node."""
        with self._told(f"port-forward to {pod}"):
            forward = self._stream.portforward(
                self._client.CoreV1Api().connect_get_namespaced_pod_portforward,
                pod,
                self.namespace,
                ports=str(names.CONTROL_PORT),
            )
            # The client's thread leaves them open where the other end says goodbye first; when it ends, they go.
            for end in (forward.websocket.sock, *(port.python for port in forward.local_ports.values())):
                if end is not None:  # it may be over already
                    weakref.finalize(forward, end.close)
            return cast("socket.socket", forward.socket(names.CONTROL_PORT))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._client.ApiException as error:
            raise NoSuchStage(f"{what} in {self.namespace}: {error.reason or error.status}") from error
        except (OSError, self._unreachable) as error:
            raise NoSuchStage(f"{what} in {self.namespace}: {error}") from error


def _namespace_of(config: Any, kubeconfig: str | None, context: str | None) -> str:
    """The namespace that the context names, else `default`."""
    try:
        contexts, active = config.list_kube_config_contexts(config_file=kubeconfig)
    except config.ConfigException:
        return "default"
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")
