"""The chart on a real API server: the rights that it gives, and what upgrading and uninstalling do to stages.

No operator runs here, so no node is needed. tests/e2e shows that stages serve on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stage_api import crdgen, names
from support.helm import CHART, ROOT, helm, needs_helm
from support.live_cluster import needs_api_server
from support.operator_process import kubectl

SYSTEM, TEAM, ELSEWHERE = "omnistage-chart-test", "omnistage-team-test", "omnistage-other-test"
RELEASE = "omnistage"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
CRD_FILE = "files/omnistage.io_diffusionstages.yaml"

pytestmark = [
    pytest.mark.cluster,
    needs_helm,
    *needs_api_server,
]


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> Iterator[None]:
    """Namespaces as strict as any, for operator and stages alike."""
    for namespace in (SYSTEM, TEAM, ELSEWHERE):
        kubectl("create", "namespace", namespace)
        kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield
    for namespace in (TEAM, ELSEWHERE, SYSTEM):
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(autouse=True)
def _no_release() -> Iterator[None]:
    yield
    helm("uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found", "--wait")


def release(verb: str, values: dict[str, Any] | None = None, *more: str, chart: Path = CHART) -> str:
    """Install or upgrade. A definition that another test left is taken over."""
    arguments = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
    where = ["--namespace", SYSTEM, "--take-ownership", "--force-conflicts"]
    done = helm(verb, RELEASE, str(chart), *where, *arguments, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def may(namespace: str, verb: str, resource: str, group: str = "", name: str | None = None) -> bool:
    """Whether the operator may do it, as the API server sees it."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": ACCOUNT,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": group,
                "resource": resource.partition("/")[0],
                "subresource": resource.partition("/")[2],
                "name": name or "",
            },
        },
    }
    return bool(json.loads(kubectl("create", "-f", "-", "-o", "json", stdin=review))["status"]["allowed"])


@pytest.mark.parametrize("namespaces", [[], [TEAM]], ids=["the cluster", "a namespace"])
def test_the_operator_may_do_what_it_does_and_no_more(namespaces: list[str]) -> None:
    release("install", {"replicas": 0, "watch.namespaces": namespaces})
    assert may(TEAM, "watch", names.PLURAL, names.GROUP)
    assert may(TEAM, "patch", f"{names.PLURAL}/status", names.GROUP)
    assert may(TEAM, "delete", "pods")
    assert may(TEAM, "patch", "poddisruptionbudgets", "policy")
    assert may(TEAM, "create", "secrets")
    assert may(TEAM, "create", "events", "events.k8s.io")
    assert may(SYSTEM, "update", "leases", "coordination.k8s.io", RELEASE)
    for verb, resource, group in (
        ("get", "secrets", ""),
        ("list", "secrets", ""),
        ("update", names.PLURAL, names.GROUP),
        ("create", names.PLURAL, names.GROUP),
        ("create", "pods/exec", ""),
        ("update", "leases", "coordination.k8s.io"),
        ("create", "roles", "rbac.authorization.k8s.io"),
        ("delete", "nodes", ""),
        ("list", "namespaces", ""),
    ):
        assert not may(TEAM, verb, resource, group), (verb, resource)
    everywhere = not namespaces
    assert may("", "list", "nodes") == everywhere
    assert may(ELSEWHERE, "list", "pods") == everywhere
    assert may(ELSEWHERE, "watch", names.PLURAL, names.GROUP) == everywhere


def older_definition() -> dict[str, Any]:
    """A definition that lacks a field of the present one."""
    crd: dict[str, Any] = yaml.safe_load((ROOT / crdgen.CRD_FILE).read_text(encoding="utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["suspend"]
    spec.pop("x-kubernetes-validations", None)
    return crd


def test_an_upgrade_brings_new_fields_and_uninstalling_takes_no_stage_away(tmp_path: Path) -> None:
    older = tmp_path / "omnistage"
    shutil.copytree(CHART, older)
    (older / CRD_FILE).write_text(yaml.safe_dump(older_definition()), encoding="utf-8")
    release("install", {"replicas": 0}, chart=older)
    assert "suspend" not in served_fields()
    kubectl("apply", "-n", TEAM, "-f", str(ROOT / "examples" / "shapes.yaml"))
    uid = stage_uid()

    release("upgrade", {"replicas": 0})
    assert "suspend" in served_fields()
    helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    assert "suspend" in served_fields()
    assert stage_uid() == uid
    kubectl("delete", names.PLURAL, "shapes", "-n", TEAM)


def test_stages_may_come_with_a_release_once_the_cluster_knows_them() -> None:
    stages = [{"name": "own", "spec": {"model": {"source": {"embedded": "shapes"}}}}]
    release("install", {"replicas": 0})
    release("upgrade", {"replicas": 0, "stages": stages})
    assert kubectl("get", names.PLURAL, "-n", SYSTEM, "-o", "name").split() == [
        f"{names.SINGULAR}.{names.GROUP}/own"
    ]


def test_the_definition_of_the_chart_replaces_an_older_one_that_was_applied_by_hand() -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=older_definition())
    assert "suspend" not in served_fields()
    release("install", {"replicas": 0})
    assert "suspend" in served_fields()


def served_fields() -> set[str]:
    crd = json.loads(kubectl("get", "crd", names.CRD_NAME, "-o", "json"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def stage_uid() -> str:
    return kubectl("get", names.PLURAL, "shapes", "-n", TEAM, "-o", "jsonpath={.metadata.uid}")
