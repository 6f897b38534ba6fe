"""A real API server takes the CRD and judges manifests as the Python validator does.

Needs KUBECONFIG, kubectl and the right to make a namespace and a CustomResourceDefinition.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stage_api import crdgen, names
from stage_api.manifest import load_manifest, parse_manifest, parse_stage
from stage_api.yaml_text import documents
from support.live_cluster import needs_api_server
from unit.api.bad_stages import CASES, ROOT, SHAPES, manifest
from unit.api.nulls import nulled

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
NAMESPACE = "omnistage-crd-test"
WAIT_S = 60

pytestmark = [
    pytest.mark.cluster,
    *needs_api_server,
]


def kubectl(*args: str, stdin: object = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl in the test's namespace; an object on `stdin` goes in as JSON."""
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    command = ["kubectl", f"--namespace={NAMESPACE}", *args]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False)


def succeed(*args: str, stdin: object = None) -> str:
    done = kubectl(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _crd() -> Iterator[None]:
    """The CRD, applied as a user applies it, and a namespace; what was not there before goes again."""
    was_there = kubectl("get", "crd", names.CRD_NAME).returncode == 0
    succeed("apply", "-f", str(ROOT / crdgen.CRD_FILE))
    succeed("wait", "--for=condition=Established", f"--timeout={WAIT_S}s", f"crd/{names.CRD_NAME}")
    succeed("create", "namespace", NAMESPACE)
    yield
    succeed("delete", "namespace", NAMESPACE, "--wait=false")
    if not was_there:
        succeed("delete", "crd", names.CRD_NAME, f"--timeout={WAIT_S}s")


def test_the_server_finds_nothing_to_complain_about_in_the_schema() -> None:
    conditions = json.loads(succeed("get", "crd", names.CRD_NAME, "-o", "json"))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions}["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in {c["type"] for c in conditions}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_server_fills_in_the_defaults_that_python_fills_in(path: Path) -> None:
    stored = json.loads(succeed("create", "--dry-run=server", "-o", "json", "-f", str(path)))
    assert stored["spec"] == load_manifest(path)[0].spec.to_json()


@pytest.mark.parametrize("case", [case for case in CASES if "server" in case], ids=lambda case: case["case"])
def test_the_server_refuses_what_python_refuses(case: dict[str, Any]) -> None:
    done = kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest(case))
    assert done.returncode != 0, "accepted"
    assert case["server"] in done.stderr


@pytest.mark.parametrize(
    "case", [case for case in CASES if "operator" in case], ids=lambda case: case["case"]
)
def test_the_server_takes_what_only_the_operator_can_judge(case: dict[str, Any]) -> None:
    succeed("create", "--dry-run=server", "-f", "-", stdin=manifest(case))


@pytest.mark.parametrize("cpu", ["0.5", "1", "1.0", "'500m'", "1e-1"])
def test_the_server_takes_an_amount_as_a_pod_does(cpu: str) -> None:
    head = f"apiVersion: {names.API_VERSION}\nkind: {names.KIND}\nmetadata: {{name: a}}\n"
    amounts = f"resources: {{requests: {{cpu: {cpu}}}, limits: {{cpu: 2}}, sharedMemory: 1Gi}}"
    text = f"{head}spec: {{model: {{source: {{embedded: shapes}}}}, {amounts}}}\n"
    stored = json.loads(succeed("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text))
    (mine,) = parse_manifest(text)
    told = stored["spec"]["resources"]["requests"]["cpu"]
    assert told == mine.spec.resources.requests["cpu"]
    amounts = {name: stored["spec"]["resources"][name] for name in ("requests", "limits")}
    template = {"spec": {"containers": [{"name": "a", "image": "a", "resources": amounts}]}}
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template}
    succeed("create", "--dry-run=server", "-f", "-", stdin=pod)


def test_the_server_takes_a_null_for_left_out_wherever_something_may_be_left_out() -> None:
    spec, told = nulled(SHAPES["spec"]["model"]["source"])
    stage = {**SHAPES, "spec": spec}
    stored = json.loads(succeed("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=stage))
    assert parse_stage({**SHAPES, "spec": stored["spec"]}).spec == parse_stage(stage).spec
    assert told > 50


@pytest.mark.parametrize("value", ["null", "2.0", "2"])
def test_the_server_accepts_what_python_accepts(value: str) -> None:
    stage = manifest({"set": {"spec.replicas": json.loads(value)}})
    stored = json.loads(succeed("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=stage))
    assert stored["spec"]["replicas"] == (1 if value == "null" else 2)


@pytest.mark.parametrize(
    "scalar",
    [
        "8",
        "'8'",
        "1_000",
        "0x10",
        "0o17",
        "017",
        "0b11",
        "08",
        "1e3",
        "1e400",
        "1_0.5",
        ".5",
        "yes",
        "Off",
        "y",
        "~",
        "2026-01-02",
        "1:30",
    ],
)
def test_a_scalar_means_to_kubectl_what_it_means_here(scalar: str) -> None:
    head = f"apiVersion: {names.API_VERSION}\nkind: {names.KIND}\nmetadata: {{name: a}}\n"
    text = f"{head}spec: {{x: {scalar}}}\n"
    read = json.loads(
        succeed("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=text)
    )
    (doc,) = documents(text)
    assert read["spec"] == doc.value["spec"]


def test_a_stage_can_be_listed_by_its_short_name_and_scaled() -> None:
    succeed("create", "-f", "-", stdin=SHAPES)
    header = succeed("get", names.SHORT_NAME, "shapes").splitlines()[0].split()
    assert header == ["NAME", *(name.upper() for name, _, _, _, *wide in crdgen.COLUMNS if not wide)]
    succeed("scale", f"{names.PLURAL}/shapes", "--replicas=3")
    assert succeed("get", names.SHORT_NAME, "shapes", "-o", "jsonpath={.spec.replicas}") == "3"


def test_a_status_is_written_through_its_own_door_only() -> None:
    succeed("create", "-f", "-", stdin={**SHAPES, "metadata": {"name": "told"}, "status": {"ready": "9/9"}})
    assert succeed("get", names.SHORT_NAME, "told", "-o", "jsonpath={.status}") == ""
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    patch = json.dumps({"status": {"ready": "1/1", "conditions": [condition]}})
    succeed("patch", names.SHORT_NAME, "told", "--subresource=status", "--type=merge", f"--patch={patch}")
    succeed("wait", "--for=condition=Ready", f"--timeout={WAIT_S}s", f"{names.PLURAL}/told")
    assert succeed("get", names.SHORT_NAME, "told", "--no-headers").split()[1] == "1/1"
