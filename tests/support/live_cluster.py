"""A throw-away cluster with nodes that run containers: the one that KUBECONFIG names, or one of this machine's own.

KUBE_ASSETS names a folder with a program `cluster` that starts one here; only there can nodes be switched off, parts
of the control plane be stopped, and processes of containers be seen.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stage_api import names
from support import images, operator_process

NODES = 3
OWN_REGISTRY = "10.89.0.1:5000"
LIMIT_S = 300
WAIT_S = 90.0
"""Pods start and nodes come back within it."""
SEAT = "omnistage.example/seat"
RESTRICTED, PRIVILEGED = "restricted", "privileged"
"""What pods of a namespace may be: as harmless as can be, or all that there is."""


def kubectl(*args: str, stdin: object = None) -> str:
    """What kubectl says; an object on `stdin` goes in as JSON. AssertionError if it fails."""
    return operator_process.kubectl(*args, stdin=stdin, within_s=WAIT_S)


def until(condition: Callable[[], Any], what: str, *, within_s: float = WAIT_S) -> Any:
    """The first true value of the condition."""
    return operator_process.until(condition, what, within_s=within_s)


def _program() -> Path | None:
    path = Path(os.environ.get("KUBE_ASSETS", "/nowhere")) / "cluster"
    return path if path.is_file() and os.geteuid() == 0 else None


def _no_server() -> str | None:
    """Why nothing can be tried on an API server."""
    if _program() is not None:
        return None
    if not os.environ.get("KUBECONFIG"):
        return "there is no KUBE_ASSETS and no KUBECONFIG of a throw-away cluster"
    return "kubectl is missing" if shutil.which("kubectl") is None else None


def _why_not() -> str | None:
    if shutil.which("buildah") is None or os.geteuid() != 0:
        return "buildah, which builds the images as root"
    if _program() is not None:
        return None
    if os.environ.get("KUBECONFIG") and images.REGISTRY:
        missing = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
        return ", ".join(missing) or None
    return "KUBE_ASSETS, or KUBECONFIG and IMAGE_REGISTRY of a throw-away cluster"


needs_cluster = pytest.mark.skipif(
    _why_not() is not None, reason=f"STAGES ARE NOT TESTED ON A CLUSTER: there is no {_why_not()}"
)
needs_api_server = (
    pytest.mark.usefixtures("api_server"),
    pytest.mark.skipif(_no_server() is not None, reason=f"NOT TESTED against an API server: {_no_server()}"),
)
"""For a test that needs no node."""
needs_own_cluster = pytest.mark.skipif(
    _program() is None,
    reason="NOT TESTED: only a cluster from KUBE_ASSETS lets its nodes and parts be stopped",
)


class LiveCluster:
    """What tests do to it, beside kubectl."""

    def __init__(self, registry: str) -> None:
        self.registry = registry

    @functools.cache  # noqa: B019 - there is one for all tests
    def image(self, part: str) -> str:
        """Tag of the operator's or the worker's image in the registry, another one for another content."""
        local = images.image(part)
        tag = images.buildah("inspect", "--type=image", "--format={{.FromImageID}}", local)[:12]
        self.push(local, f"omnistage-{part}:{tag}")
        return tag

    def push(self, local: str, name: str) -> None:
        """Hand an image that was built here to the nodes."""
        where = f"docker://{self.registry}/{name}"
        # To a registry on this machine, to compress takes longer than to send.
        options = ("--tls-verify=false", "--disable-compression")
        images.buildah("push", *options, local, where, timeout_s=LIMIT_S)

    def stop(self, what: str) -> None:
        """Switch a node off, or end a part of the control plane."""
        self._order("stop-node" if what.startswith("node-") else "stop", what)

    def start(self, what: str) -> None:
        """And on again."""
        self._order("start-node" if what.startswith("node-") else "start", what)

    def kill(self, pod: dict[str, Any]) -> int:
        """End every process of a pod at once, as the kernel does; how many there were."""
        uid = pod["metadata"]["uid"]
        found = [pid for pid, groups in _processes() if f"pod{uid}" in groups and not _is_pause(pid)]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def _order(self, *order: str) -> None:
        program = _program()
        assert program is not None, "mark the test with needs_own_cluster"
        done = subprocess.run(
            [str(program), *order],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running_cluster() -> Iterator[LiveCluster]:
    """The cluster under test; one that was started here is stopped at the end."""
    if os.environ.get("KUBECONFIG"):
        yield LiveCluster(images.REGISTRY or OWN_REGISTRY)
        return
    cluster = LiveCluster(OWN_REGISTRY)
    before = dict(os.environ)
    try:
        cluster._order("up", str(NODES))
        os.environ.update(_environment())
        yield cluster
    finally:
        cluster._order("down")
        os.environ.clear()
        os.environ.update(before)


def make_namespace(name: str, pods: str = RESTRICTED) -> None:
    """One where only pods may run that ask for no privilege at all, or for others, if it is said."""
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": pods}}
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def nodes() -> list[str]:
    """Names of all nodes."""
    return kubectl("get", "nodes", "-o", "name").replace("node/", "").split()


def seat(node: str, count: int) -> None:
    """Give a node so many of a thing that pods can ask for, as a plugin for accelerators does."""
    for part in ("capacity", "allocatable"):
        patch = [{"op": "add", "path": f"/status/{part}/{SEAT.replace('/', '~1')}", "value": str(count)}]
        kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")


def items(kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
    """Objects of a kind."""
    found = json.loads(
        kubectl("get", kind, f"--namespace={namespace}", f"--selector={selector}", "-o", "json")
    )
    return sorted(found["items"], key=lambda each: each["metadata"]["name"])


def stage_pods(namespace: str, stage: str) -> list[dict[str, Any]]:
    """Pods of a stage, by name."""
    return items("pods", namespace, f"{names.LABEL_STAGE}={stage}")


def _environment() -> dict[str, str]:
    text = subprocess.run(
        [str(_program()), "env"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout
    command = ["bash", "-c", f"{text}\necho $KUBECONFIG; echo $PATH"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    kubeconfig, path = found.splitlines()
    return {"KUBECONFIG": kubeconfig, "PATH": path}


def _processes() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "cgroup").read_text()
        except OSError:
            continue  # it has ended


def _is_pause(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0") == b"/pause"
    except OSError:
        return True
