"""What a real API server and the operator together make of a stage whose pods it refuses, or whose children go.

Needs KUBECONFIG, kubectl and the right to make namespaces and a CustomResourceDefinition. No node is needed: the pods
wait behind a gate.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stage_api import names
from support.live_cluster import needs_api_server
from support.operator_process import OperatorProcess, install_crd, kubectl, until

NAMESPACE = "omnistage-told-test"
AT = f"--namespace={NAMESPACE}"
SOON_S = 10.0
GATED = {"schedulingGates": [{"name": "example.com/never"}]}

pytestmark = [
    pytest.mark.cluster,
    *needs_api_server,
]


@pytest.fixture(scope="module")
def operator() -> Iterator[OperatorProcess]:
    install_crd()
    kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(os.environ["KUBECONFIG"], "--leader-elect=false", program="stage_operator")
    yield operator.await_ready()
    kubectl(AT, "delete", names.PLURAL, "--all")
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    assert operator.end() == 0


def apply(name: str, pod_spec: dict[str, Any]) -> None:
    spec = {
        "model": {"source": {"embedded": "shapes"}},
        "engine": {"device": "cpu"},
        "podTemplate": {"spec": {**GATED, **pod_spec}},
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
    kubectl("apply", "-f", "-", stdin=manifest)


def conditions(name: str) -> dict[str, dict[str, Any]]:
    found = json.loads(kubectl(AT, "get", names.PLURAL, name, "-o", "json"))
    return {one["type"]: one for one in found.get("status", {}).get("conditions", ())}


def pods(name: str) -> list[str]:
    selector = f"--selector={names.LABEL_STAGE}={name}"
    return kubectl(AT, "get", "pods", selector, "-o", "jsonpath={.items[*].metadata.name}").split()


def test_a_typing_error_in_a_pod_template_is_told_and_holds_the_stage_until_it_is_mended(
    operator: OperatorProcess,
) -> None:
    apply("typo", {"nodeSelectr": {"pool": "gpu"}})
    until(lambda: conditions("typo").get("Accepted", {}).get("status") == "False", "the refusal")
    accepted = conditions("typo")["Accepted"]
    assert accepted["reason"] == "PodInvalid"
    assert 'unknown field "spec.nodeSelectr"' in accepted["message"]
    time.sleep(2)
    tries = operator.metric(r'api_requests_total\{.*resource="pods",verb="create"')
    assert tries < 8, "it waits longer and longer"
    table = kubectl(AT, "get", names.PLURAL, "typo")
    assert "Refused" in table
    found = json.loads(kubectl(AT, "get", "events.events.k8s.io", "-o", "json"))["items"]
    ours = [
        each
        for each in found
        if each["regarding"] == {**each["regarding"], "kind": names.KIND, "name": "typo"}
    ]
    told = [(each["type"], each["reason"], each["note"]) for each in ours]
    assert told == [("Warning", "PodInvalid", accepted["message"])]
    assert pods("typo") == []

    apply("typo", {"nodeSelector": {"pool": "gpu"}})
    until(lambda: pods("typo"), "a pod", within_s=SOON_S)
    until(lambda: conditions("typo")["Accepted"]["status"] == "True", "the acceptance", within_s=SOON_S)


@pytest.mark.parametrize("kind", ["service", "configmap", "serviceaccount", "pdb", "networkpolicy"])
def test_a_child_that_somebody_deleted_is_back_soon(operator: OperatorProcess, kind: str) -> None:
    if not pods("robbed"):
        apply("robbed", {})
        until(lambda: pods("robbed"), "a pod")
    selector = f"--selector={names.LABEL_STAGE}=robbed"

    def uids() -> set[str]:
        return set(kubectl(AT, "get", kind, selector, "-o", "jsonpath={.items[*].metadata.uid}").split())

    before = uids()
    assert before
    kubectl(AT, "delete", kind, selector)
    until(lambda: len(uids()) == len(before) and not uids() & before, f"another {kind}", within_s=SOON_S)


def test_a_child_that_somebody_changed_is_put_right_soon(operator: OperatorProcess) -> None:
    apply("bent", {})
    until(lambda: pods("bent"), "a pod")
    wrong = json.dumps({"spec": {"selector": {names.LABEL_STAGE: "nobody"}}})
    kubectl(AT, "patch", "service", "bent", "--type=merge", f"--patch={wrong}")
    path = "jsonpath={.spec.selector.omnistage\\.io/stage}"
    until(
        lambda: kubectl(AT, "get", "service", "bent", "-o", path) == "bent", "the selector", within_s=SOON_S
    )
