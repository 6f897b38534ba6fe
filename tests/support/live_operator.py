"""The operator as its chart installs it on a live cluster."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.helm import CHART, program
from support.live_cluster import LiveCluster, items, kubectl, make_namespace, until

NAMESPACE = "omnistage-system"
LIMIT_S = 120
Manifest = dict[str, Any]


class Release:
    """One release of the chart."""

    def __init__(self, cluster: LiveCluster, name: str = "omnistage", namespace: str = NAMESPACE) -> None:
        self.name = name
        self.namespace = namespace
        self._cluster = cluster

    def values(self, **more: Any) -> Manifest:
        """What the tests set: the images, and leases short enough to wait for."""
        registry = self._cluster.registry
        return {
            "registry": registry,
            "image": {"tag": self._cluster.image("operator")},
            "worker": {"defaultImage": f"{registry}/omnistage-worker:{self._cluster.image('worker')}"},
            "lease": {"durationSeconds": 6, "renewSeconds": 4, "retrySeconds": 1},
            "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}, "limits": {"memory": "512Mi"}},
            **more,
        }

    def install(self, **more: Any) -> None:
        """Install it, or upgrade it to these values, and wait until it runs."""
        make_namespace(self.namespace)
        self.helm(
            *("upgrade", "--install", self.name, str(CHART), "--values=-", "--wait", "--timeout=100s"),
            stdin=json.dumps(self.values(**more)),
        )

    def helm(self, *args: str, stdin: str = "") -> str:
        """What helm says."""
        path = program()
        assert path is not None, "there is no helm"
        done = subprocess.run(
            [path, f"--namespace={self.namespace}", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + self.story()
        return done.stdout

    def uninstall(self) -> None:
        """And wait until its pods are gone."""
        self.helm("uninstall", self.name, "--wait", "--timeout=60s")
        until(lambda: not self.pods(), "the operator's pods to go")

    def pods(self) -> list[Manifest]:
        return items("pods", self.namespace, f"app.kubernetes.io/instance={self.name}")

    def leases(self) -> list[Manifest]:
        """By which its pods take turns."""
        return [one for one in items("leases", self.namespace) if one["metadata"]["name"] == self.name]

    def leader(self) -> Manifest:
        """The pod that acts."""

        def found() -> Manifest | None:
            at = f"--namespace={self.namespace}"
            path = "jsonpath={.spec.holderIdentity}"
            holder = kubectl(at, "get", "lease", self.name, "-o", path).partition("_")[0]
            return next((pod for pod in self.pods() if pod["metadata"]["name"] == holder), None)

        leader: Manifest = until(found, "a leader")
        return leader

    def logs(self) -> list[Manifest]:
        """What its pods said."""
        text = kubectl(
            f"--namespace={self.namespace}",
            "logs",
            f"--selector=app.kubernetes.io/instance={self.name}",
            "--tail=-1",
        )
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def story(self) -> str:
        """All there is to say, for who reads why a test failed."""
        at = f"--namespace={self.namespace}"
        done = subprocess.run(
            ["bash", "-c", f"kubectl {at} get pods -o wide; kubectl {at} get events | tail -20"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.stdout + done.stderr
