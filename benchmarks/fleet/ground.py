"""An API server with its controllers and scheduler, and nodes that kwok plays: pods on them are Ready at once.

KUBECONFIG names a throw-away cluster, with kwok on PATH; else KUBE_ASSETS names a folder with a program `cluster`
that starts one here. How kwok plays pods is in a file kwok.yaml in that folder. A pod annotated with EXIT fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from stage_api import crdgen, names

ROOT: Final = Path(__file__).resolve().parents[2]
EXIT: Final = "kube.local/exit"
"""Annotation of a pod: it fails with that exit code."""
TAINT: Final = "omnistage.io/played"
NODES: Final = 20
NODE_GRACE: Final = "50s"
"""Kubernetes' own; a busy machine is late with the leases of nodes."""
_PODS_A_NODE: Final = 1000
_PLAYED: Final = {"kwok.x-k8s.io/node": "fake"}
_LIMIT_S: Final = 300

Manifest = dict[str, Any]


def placement() -> Manifest:
    """What keeps a pod to the played nodes, and lets it there."""
    return {
        "nodeSelector": {TAINT: "true"},
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
    }


@contextmanager
def ground(logs: Path) -> Iterator[None]:
    """A cluster with played nodes and the stage's definition; what was started for it is ended."""
    assets = _assets()
    before = dict(os.environ)
    own = "KUBECONFIG" not in os.environ
    kwok = None
    try:
        if own:
            _cluster("up", "0")
            os.environ.update(_environment())
        kubectl("apply", "-f", str(ROOT / crdgen.CRD_FILE))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{names.CRD_NAME}")
        # Of new names: who played older ones still has their leases.
        nodes = [_node(f"played-{os.getpid()}-{index}") for index in range(NODES)]
        kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": nodes})
        with (logs / "kwok.log").open("wb") as log:
            kwok = subprocess.Popen(_kwok(assets), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait = "--for=condition=Ready"
        kubectl("wait", wait, "node", f"--selector={TAINT}=true", "--timeout=60s")
        yield
    finally:
        if kwok is not None:
            kwok.terminate()
            kwok.wait(_LIMIT_S)
        if own:
            _cluster("down")
        else:
            kubectl("delete", "node", f"--selector={TAINT}=true", "--ignore-not-found")
        os.environ.clear()
        os.environ.update(before)


def kubectl(*args: str, stdin: object = None) -> str:
    """What kubectl says; an object on `stdin` goes in as JSON. RuntimeError if it fails."""
    return _said(["kubectl", *args], None if stdin is None else json.dumps(stdin))


def make_namespace(name: str) -> None:
    """A namespace, if there is none of that name."""
    metadata = {"name": name}
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def wipe(path: str, selector: str) -> None:
    """Delete all selected objects under the path of a kind's URL, at once, and wait until they are gone."""
    deadline = time.monotonic() + _LIMIT_S
    chosen = f"{path}?labelSelector={selector}"
    while json.loads(kubectl("get", "--raw", f"{chosen}&limit=1"))["items"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} is not empty after {_LIMIT_S} s")
        with suppress(RuntimeError):  # so many may take longer than a request may
            kubectl("delete", "--raw", f"{chosen}&gracePeriodSeconds=0&propagationPolicy=Background")
        time.sleep(0.2)


def machinery() -> list[psutil.Process]:
    """The processes of a control plane that runs here."""
    found = []
    for process in psutil.process_iter(["name"]):
        name = process.info["name"] or ""
        if name.startswith(("kube-", "etcd", "docker-registry")):
            found.append(process)
    return found


def _node(name: str) -> Manifest:
    room = {"cpu": "10k", "memory": "100Ti", "pods": str(_PODS_A_NODE), "ephemeral-storage": "100Ti"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": _PLAYED, "labels": {TAINT: "true"}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }


def _kwok(assets: Path) -> list[str]:
    return [
        *("kwok", f"--kubeconfig={os.environ['KUBECONFIG']}", f"--config={assets / 'kwok.yaml'}"),
        *(
            "--v=WARN",
            "--node-lease-duration-seconds=20",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        ),
    ]


def _assets() -> Path:
    folder = os.environ.get("KUBE_ASSETS")
    if folder is None:
        raise RuntimeError("expected KUBE_ASSETS, a folder with kwok.yaml and a program cluster; got nothing")
    return Path(folder)


def _cluster(*order: str) -> None:
    done = subprocess.run(
        [str(_assets() / "cluster"), *order],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # what it starts would hold a pipe open
        env={"KUBE_NODE_GRACE": NODE_GRACE, **os.environ},
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cluster {' '.join(order)} failed with {done.returncode}")


def _environment() -> dict[str, str]:
    text = _said([str(_assets() / "cluster"), "env"])
    kubeconfig, path = _said(["bash", "-c", f"{text}\necho $KUBECONFIG; echo $PATH"]).splitlines()
    return {"KUBECONFIG": kubeconfig, "PATH": path}


def _said(command: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(
        command, input=stdin or "", capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
