"""One stage of the embedded model on a live cluster: made, changed, looked at, and its processes hurt."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import yaml

from stage_api import names
from support.live_cluster import items, kubectl, stage_pods, until
from unit.api.bad_stages import ROOT

NAMESPACE = "omnistage-e2e"
READY_S = 120.0
Manifest = dict[str, Any]

QUICK = {
    # A replica that was ready for a second starts again at once, so that tests need not wait.
    "failurePolicy": {
        "backoff": {"initialSeconds": 2, "maxSeconds": 4},
        "resetAfterSeconds": 1,
        "nodeLost": {"graceSeconds": 5, "forceDeleteAfterSeconds": 20},
    },
    "drain": {"admitSeconds": 3, "timeoutSeconds": 20},
    "startup": {"timeoutSeconds": 90},
    "resources": {"requests": {"cpu": "50m", "memory": "300Mi"}},
    "podTemplate": {
        "spec": {
            "containers": [{"name": names.CONTAINER, "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}]
        }
    },
}


def example(name: str = "shapes", **spec: Any) -> Manifest:
    """An example of the repository with short waits, and `spec` over it."""
    manifest = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    manifest["spec"] = _over(_over(manifest["spec"], QUICK), spec)
    return dict(manifest)


def on_nodes(*nodes: str) -> Manifest:
    """A pod template that keeps pods to some nodes, each on another one if it can be."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchExpressions": [{"key": names.LABEL_STAGE, "operator": "Exists"}]},
    }
    return {"spec": {"affinity": {"nodeAffinity": required}, "topologySpreadConstraints": [spread]}}


class LiveStage:
    """A stage that is there."""

    def __init__(self, name: str, manifest: Manifest, namespace: str = NAMESPACE) -> None:
        self.name = name
        self.namespace = namespace
        self._at = f"--namespace={namespace}"
        manifest = copy.deepcopy(manifest)
        manifest["metadata"] = {"name": name, "namespace": namespace}
        kubectl("apply", "-f", "-", stdin=manifest)

    @property
    def url(self) -> str:
        """Where pictures are made, for who is in the cluster."""
        return f"http://{self.name}.{self.namespace}.svc:{names.HTTP_PORT}/v1/images/generations"

    def get(self) -> Manifest:
        return dict(json.loads(kubectl(self._at, "get", names.PLURAL, self.name, "-o", "json")))

    def status(self) -> Manifest:
        return dict(self.get().get("status") or {})

    def condition(self, kind: str) -> Manifest:
        """One condition, empty if it isn't told."""
        found = (one for one in self.status().get("conditions", ()) if one["type"] == kind)
        return next(found, {})

    def replica(self, index: int = 0) -> Manifest:
        """What the operator remembers of a replica, empty if nothing."""
        found = (one for one in self.status().get("replicaStatuses", ()) if one["index"] == index)
        return next(found, {})

    def pods(self) -> list[Manifest]:
        return stage_pods(self.namespace, self.name)

    def pod_names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods()]

    def pod(self, name: str) -> Manifest:
        return dict(json.loads(kubectl(self._at, "get", "pod", name, "-o", "json")))

    def uids(self) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self.pods()]

    def await_ready(self, ready: str = "1/1", *, within_s: float = READY_S) -> LiveStage:
        """Until all replicas serve with the spec as it is now."""

        def is_ready() -> bool:
            stage = self.get()
            status = stage.get("status") or {}
            held = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
            current = status.get("observedGeneration") == stage["metadata"]["generation"]
            return current and held and status.get("ready") == ready

        try:
            until(is_ready, f"{self.name} to be Ready {ready}", within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error
        return self

    def await_epoch(self, epoch: int, replica: int = 0, *, within_s: float = READY_S) -> LiveStage:
        """Until a replica is in that life and serves."""

        def is_there() -> bool:
            found = self.replica(replica)
            return found.get("epoch") == epoch and found.get("phase") == "Ready"

        try:
            until(is_there, f"{self.name} to serve in epoch {epoch}", within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error
        return self

    def patch(self, spec: Manifest) -> None:
        """Change the spec."""
        patch = json.dumps({"spec": spec})
        kubectl(self._at, "patch", names.PLURAL, self.name, "--type=merge", f"--patch={patch}")

    def scale(self, replicas: int) -> None:
        kubectl(self._at, "scale", names.PLURAL, self.name, f"--replicas={replicas}")

    def delete(self) -> None:
        """And wait until all of it is gone."""
        kubectl(self._at, "delete", names.PLURAL, self.name, "--ignore-not-found")
        until(lambda: not self.pods(), f"the pods of {self.name} to go")

    def signal_rank(self, pod: str, number: int, rank: int = 0) -> None:
        """Send a rank's process a signal, inside its pod."""
        program = (
            "import os, pathlib, sys\n"
            "want = ['--rank', sys.argv[1]]\n"
            "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
            "    words = path.read_bytes().decode().split('\\0')\n"
            "    if 'stage_runtime.rank' in words and words[words.index('--rank'):][:2] == want:\n"
            "        os.kill(int(path.parent.name), int(sys.argv[2]))\n"
            "        sys.exit(0)\n"
            "sys.exit('no such rank')\n"
        )
        kubectl(self._at, "exec", pod, "--", "python", "-c", program, str(rank), str(number))

    def story(self) -> str:
        """All there is to say, for who reads why a test failed."""
        events = items("events", self.namespace)
        told = [
            f"{one.get('lastTimestamp') or one.get('eventTime')} {one['involvedObject'].get('name')} "
            f"{one.get('reason')}: {one.get('message')}"
            for one in events
            if one["involvedObject"].get("name", "").startswith(self.name)
        ]
        status = json.dumps(self.status(), indent=1)
        table = kubectl(self._at, "get", f"{names.PLURAL},pods", "-o", "wide")
        return "\n".join((table, status, *told[-40:]))


def _over(ours: Manifest, theirs: Manifest) -> Manifest:
    """`theirs` laid over `ours`; maps are merged, all else is replaced."""
    made = dict(ours)
    for key, value in theirs.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = _over(made[key], value) if both else value
    return made


StageMaker = Callable[..., LiveStage]
"""Makes a stage by its name, and perhaps its manifest, its namespace and what pods may be there."""
