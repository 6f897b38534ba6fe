"""Helm, where this machine has it: the chart rendered to objects, as a cluster would get them."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "omnistage"
KIND = "omnistage.io/v1alpha1/DiffusionStage"
LIMIT_S = 60


@functools.cache
def program() -> str | None:
    """Helm from PATH, or from the folder of cluster programs that KUBE_ASSETS names."""
    if (found := shutil.which("helm")) is not None:
        return found
    packed = Path(os.environ.get("KUBE_ASSETS", "/nowhere")) / "bin" / "helm.zst"
    if not packed.is_file() or shutil.which("zstd") is None:
        return None
    unpacked = Path(tempfile.mkdtemp(prefix="omnistage-helm-")) / "helm"
    subprocess.run(["zstd", "-dq", str(packed), "-o", str(unpacked)], check=True, timeout=LIMIT_S)
    unpacked.chmod(0o755)
    return str(unpacked)


needs_helm = pytest.mark.skipif(
    program() is None, reason="THE CHART IS NOT TESTED: helm is neither on PATH nor under KUBE_ASSETS"
)


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Run it; the caller judges how it ended."""
    path = program()
    assert path is not None, "mark the test with needs_helm"
    return subprocess.run([path, *args], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def template(
    values: dict[str, Any] | None = None,
    *,
    name: str = "omnistage",
    namespace: str = "house",
    api: str = KIND,
) -> subprocess.CompletedProcess[str]:
    """Render the chart for a cluster that serves one more kind."""
    return _template(json.dumps(values or {}), name, namespace, api)


@functools.cache
def _template(values: str, name: str, namespace: str, api: str) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:  # JSON is YAML
        file.write(values)
        file.flush()
        where = ["--namespace", namespace, "--api-versions", api, "--kube-version", "1.34.0"]
        return helm("template", name, str(CHART), "--values", file.name, *where)


def render(values: dict[str, Any] | None = None, **where: str) -> list[dict[str, Any]]:
    """The objects that the chart makes of these values."""
    done = template(values, **where)
    assert done.returncode == 0, done.stderr
    return copy.deepcopy(_objects(done.stdout))


@functools.cache
def _objects(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def one(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """The only object of a kind, or of a kind and a name."""
    (found,) = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found
