"""Who asks for pictures: a pod in the cluster that reaches stages as any other does, through their Services."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shapes_model.checker import check_picture
from support.live_cluster import kubectl, until

NAMESPACE = "omnistage-e2e-clients"
PROGRAM = Path(__file__).with_name("client_program.py")
PROMPT = "a large red circle in the center on a white background"
LIMIT_S = 90.0


@dataclass(frozen=True)
class Answer:
    """What came back, or didn't."""

    at_s: float
    """UNIX time of the end."""
    seconds: float
    status: int
    """0: there was no answer at all."""
    code: str
    """Of the error; empty for a picture."""
    picture: str | None = None

    def shows(self, prompt: str) -> bool:
        """Whether the picture shows what was asked for."""
        assert self.status == 200, self
        assert self.picture is not None
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(self.picture))).convert("RGB"))
        return check_picture(pixels, prompt).ok


class Client:
    """One pod that does nothing by itself."""

    def __init__(self, image: str, name: str = "client", node: str | None = None) -> None:
        self.name = name
        self._at = (f"--namespace={NAMESPACE}", name)
        kubectl("apply", "-f", "-", stdin=plain_pod(name, image, node))
        kubectl("wait", self._at[0], f"pod/{name}", "--for=condition=Ready", f"--timeout={LIMIT_S:.0f}s")

    def ask(self, url: str, prompt: str = PROMPT, *, seed: int = 1, steps: int = 20) -> Answer:
        """One picture."""
        order = {"url": url, "prompt": prompt, "seed": seed, "steps": steps}
        return Answer(**json.loads(self._run(json.dumps(order))))

    def ask_until_served(self, url: str, within_s: float = LIMIT_S) -> Answer:
        """The first picture that comes."""

        def drawn() -> Answer | None:
            answer = self.ask(url, steps=2)
            return answer if answer.status == 200 else None

        answer: Answer = until(drawn, f"a picture from {url}", within_s=within_s)
        return answer

    def read(self, url: str) -> str:
        """The text of a page."""
        return self._run(json.dumps({"read": url}))

    def _run(self, order: str) -> str:
        done = subprocess.run(
            ["kubectl", "exec", *self._at, "-i", "--", "python", "-c", PROGRAM.read_text(), order],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Traffic:
    """Several clients that ask one after the other, without a pause, from a pod of their own.

    A pod of its own goes on while the API server is away.
    """

    _count = 0

    def __init__(
        self, image: str, url: str, *, workers: int = 2, steps: int = 10, node: str | None = None
    ) -> None:
        Traffic._count += 1
        self.name = f"traffic-{Traffic._count}"
        order = {"url": url, "prompt": PROMPT, "seed": 1, "steps": steps, "workers": workers}
        pod = plain_pod(self.name, image, node)
        pod["spec"]["containers"][0]["command"] = ["python", "-c", PROGRAM.read_text(), json.dumps(order)]
        self._at = f"--namespace={NAMESPACE}"
        kubectl("apply", "-f", "-", stdin=pod)
        until(self.answers, f"the first answer of {self.name}")

    def answers(self) -> list[Answer]:
        """All that came so far."""
        done = subprocess.run(
            ["kubectl", self._at, "logs", self.name],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return [Answer(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]

    def await_more(self, count: int = 3, *, status: int = 200) -> None:
        """So many more answers of a kind."""
        before = sum(answer.status == status for answer in self.answers())
        until(
            lambda: sum(answer.status == status for answer in self.answers()) >= before + count,
            f"{count} more answers with {status}",
        )

    def end(self) -> list[Answer]:
        """Let what is under way finish; all that came."""
        kubectl(self._at, "exec", self.name, "--", "touch", "/tmp/stop")
        until(lambda: self._phase() == "Succeeded", f"the end of {self.name}")
        answers = self.answers()
        kubectl(self._at, "delete", "pod", self.name, "--wait=false")
        return answers

    def _phase(self) -> str:
        return kubectl(self._at, "get", "pod", self.name, "-o", "jsonpath={.status.phase}")


TrafficMaker = Callable[..., Traffic]
"""Sends requests to a stage, with the options of `Traffic`."""


def kinds(answers: list[Answer]) -> Counter[tuple[int, str]]:
    """How many there were of each."""
    return Counter((answer.status, answer.code) for answer in answers)


def plain_pod(name: str, image: str, node: str | None = None) -> dict[str, Any]:
    """A pod that may do nothing and does nothing."""
    container = {
        "name": "client",
        "image": image,
        "command": ["python", "-c", "import signal; signal.pause()"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
