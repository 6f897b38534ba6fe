"""The operator as a process of its own, with the plain plan unless told otherwise; a proxy that misbehaves; kubectl."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stage_api import crdgen, names
from support.plain_stage_plan import OPTIONS
from unit.api.bad_stages import ROOT

WAIT_S = 20.0
STEP_S = 0.1

Manifest = dict[str, Any]


def kubectl(*args: str, stdin: object = None, within_s: float = WAIT_S) -> str:
    """What kubectl says; an object on `stdin` goes in as JSON. AssertionError if it fails."""
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    done = subprocess.run(
        ["kubectl", *args], input=text, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(condition: Callable[[], Any], what: str, *, within_s: float = WAIT_S) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(STEP_S)
    return found


def install_crd() -> None:
    """The definition as it is in the repository."""
    kubectl("apply", "-f", str(ROOT / crdgen.CRD_FILE))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{names.CRD_NAME}")


class Stage:
    """One stage of the plain plan."""

    def __init__(
        self, namespace: str, name: str, *, replicas: int = 1, options: tuple[str, ...] = ()
    ) -> None:
        self.namespace = namespace
        self.name = name
        engine = {"dtype": "float32", "device": "cpu"}
        spec = {"replicas": replicas, "model": {"source": {"embedded": "shapes"}}, "engine": engine}
        metadata = {"name": name, "namespace": namespace, "annotations": {OPTIONS: ",".join(options)}}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
        kubectl("apply", "-f", "-", stdin=manifest)

    def get(self) -> Manifest:
        found: Manifest = json.loads(self._kubectl("get", names.PLURAL, self.name, "-o", "json"))
        return found

    def status(self) -> Manifest:
        status: Manifest = self.get().get("status") or {}
        return status

    def pods(self) -> list[str]:
        """Names of its pods that aren't going."""
        selector = f"--selector={names.LABEL_STAGE}={self.name}"
        items = json.loads(self._kubectl("get", "pods", selector, "-o", "json"))["items"]
        alive = [each["metadata"] for each in items if "deletionTimestamp" not in each["metadata"]]
        return sorted(metadata["name"] for metadata in alive)

    def await_pods(self, *expected: str, within_s: float = WAIT_S) -> None:
        until(lambda: self.pods() == sorted(expected), f"pods {expected}", within_s=within_s)

    def tell(self, pod: str, phase: str) -> None:
        """Say of a pod what a kubelet would."""
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        patch = json.dumps({"status": {"phase": phase, "conditions": [ready]}})
        self._kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")

    def delete_pods(self, *pods: str) -> None:
        self._kubectl("delete", "pod", *pods, "--force", "--grace-period=0", "--wait=false")

    def _kubectl(self, *args: str) -> str:
        return kubectl(f"--namespace={self.namespace}", *args)


class Proxy:
    """What stands before the API server."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.api_proxy", os.environ["KUBECONFIG"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads here."""
        path = folder / "proxy.kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [cluster],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [context],
                    "current-context": "c",
                }
            )
        )
        return path

    def order(self, text: str) -> None:
        """Tell it how to behave."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ok\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class OperatorProcess:
    """One replica."""

    def __init__(
        self, kubeconfig: str | Path, *flags: str, program: str = "support.plain_stage_plan"
    ) -> None:
        self.lines: list[Manifest] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", program, "--worker-image=none", "--port=0"),
                *(f"--kubeconfig={kubeconfig}", *flags),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def port(self) -> int:
        return int(until(lambda: self.said("listening"), "the operator to listen")["port"])

    def said(self, message: str) -> Manifest | None:
        """The last line with that message."""
        found = [line for line in self.lines if line["message"] == message]
        return found[-1] if found else None

    def await_ready(self) -> OperatorProcess:
        until(lambda: self.ask("/readyz")[0] == 200, "the operator to be ready")
        return self

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, pattern: str) -> float:
        """The sum of its samples whose line begins so."""
        # A name stands for itself, not for what it begins.
        found = re.compile(rf"omnistage_operator_{pattern}(?![a-z_]).*? ?(?P<value>[-+.e\d]+)$")
        lines = self.ask("/metrics")[1].splitlines()
        return sum(float(match["value"]) for line in lines if (match := found.match(line)) is not None)

    def writes(self) -> float:
        """How much it has written so far, but for the Lease."""
        written = self.metric(r'api_requests_total\{.*verb="(create|apply|patch|update|delete)"')
        return written - self.metric(r'api_requests_total\{.*resource="leases",verb="(create|update)"')

    @property
    def leads(self) -> bool:
        return self.metric("leader") == 1

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait(self, within_s: float = WAIT_S) -> int:
        """Its exit code."""
        code = self._process.wait(within_s)
        self._reader.join(within_s)
        return code

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def end(self) -> int:
        """Tell it to end; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)  # shown with a test that fails
            self.lines.append(json.loads(line) if line.startswith("{") else {"message": line})
        self._process.stderr.close()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("crds", "operator", "tests"))
    return {**os.environ, "PYTHONPATH": path}
