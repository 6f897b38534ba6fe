"""Several replicas of the operator, and replicas that may do less than all, on a real API server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stage_api import names
from support.live_cluster import needs_api_server
from support.operator_process import OperatorProcess, Stage, install_crd, kubectl, until

NAMESPACE = "omnistage-replicas-test"
ELSEWHERE = "omnistage-elsewhere-test"
USER = "limited"

pytestmark = [
    pytest.mark.cluster,
    *needs_api_server,
]

Start = Callable[..., OperatorProcess]

RULES: list[dict[str, Any]] = [
    {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [names.GROUP], "resources": [f"{names.PLURAL}/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {
        "apiGroups": ["", "policy", "networking.k8s.io"],
        "resources": [
            *("configmaps", "services", "serviceaccounts"),
            *("poddisruptionbudgets", "networkpolicies"),
        ],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["list", "create", "patch"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> Iterator[None]:
    install_crd()
    for namespace in (NAMESPACE, ELSEWHERE):
        kubectl("create", "namespace", namespace)
    yield
    for namespace in (NAMESPACE, ELSEWHERE):
        kubectl("delete", names.PLURAL, "--all", f"--namespace={namespace}")
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    """How somebody reaches the API server who may work in one namespace only."""
    where = f"--namespace={NAMESPACE}"
    kubectl(where, "create", "serviceaccount", USER)
    _grant(RULES)
    kubectl(where, "create", "rolebinding", USER, f"--role={USER}", f"--serviceaccount={NAMESPACE}:{USER}")
    token = kubectl(where, "create", "token", USER).strip()
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "limited.kubeconfig"
    path.write_text(json.dumps(config))
    yield path
    kubectl(where, "delete", f"serviceaccount/{USER}", f"rolebinding/{USER}", f"role/{USER}")


def _grant(rules: list[dict[str, Any]]) -> None:
    metadata = {"name": USER, "namespace": NAMESPACE}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": rules,
    }
    kubectl("apply", "-f", "-", stdin=role)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a replica; none outlives its test."""
    started: list[OperatorProcess] = []

    def start(*flags: str, kubeconfig: Path | None = None) -> OperatorProcess:
        way = os.environ["KUBECONFIG"] if kubeconfig is None else kubeconfig
        started.append(OperatorProcess(way, f"--namespaces={NAMESPACE}", *flags))
        return started[-1]

    yield start
    for each in started:
        if each.runs:
            each.kill()


def turns(lease: str) -> tuple[str, ...]:
    """Flags of replicas that take turns by that Lease, quickly."""
    names_ = (f"--lease-namespace={NAMESPACE}", f"--lease-name={lease}")
    return (*names_, "--lease-seconds=4", "--renew-seconds=3", "--retry-seconds=0.5")


def test_another_replica_takes_over_from_a_killed_one_and_only_then(start: Start) -> None:
    first = start(*turns("kill")).await_ready()
    until(lambda: first.leads, "the first to lead")
    second = start(*turns("kill")).await_ready()
    stage = Stage(NAMESPACE, "killed")
    stage.await_pods("killed-0-e0-0")
    assert not second.leads
    first.kill()
    began = time.monotonic()
    stage.tell("killed-0-e0-0", "Failed")
    stage.await_pods("killed-0-e1-0")
    assert second.leads
    assert 2 < time.monotonic() - began < 10
    assert stage.status()["restarts"] == 1
    assert second.end() == 0


def test_a_replica_that_ends_in_order_hands_over_at_once(start: Start) -> None:
    first = start(*turns("end")).await_ready()
    until(lambda: first.leads, "the first to lead")
    second = start(*turns("end")).await_ready()
    assert first.end() == 0
    until(lambda: second.leads, "the second to lead", within_s=3)
    assert second.end() == 0


def test_a_leader_that_was_stopped_for_long_writes_nothing_when_it_wakes(start: Start) -> None:
    first = start(*turns("stop")).await_ready()
    until(lambda: first.leads, "the first to lead")
    second = start(*turns("stop")).await_ready()
    stage = Stage(NAMESPACE, "stopped")
    stage.await_pods("stopped-0-e0-0")
    first.pause()
    until(lambda: second.leads, "the second to lead", within_s=10)
    stage.tell("stopped-0-e0-0", "Failed")
    stage.await_pods("stopped-0-e1-0")
    first.resume()
    until(lambda: first.said("this replica leads no more"), "the first to see it")
    time.sleep(1)
    assert stage.pods() == ["stopped-0-e1-0"]
    assert stage.status()["restarts"] == 1
    assert (first.end(), second.end()) == (0, 0)


def test_rights_in_one_namespace_are_enough_and_nothing_else_is_touched(limited: Path, start: Start) -> None:
    operator = start(f"--lease-namespace={NAMESPACE}", kubeconfig=limited)
    operator.await_ready()
    ours, others = Stage(NAMESPACE, "ours", options=("SECRET",)), Stage(ELSEWHERE, "others")
    ours.await_pods("ours-0-e0-0")
    ours.tell("ours-0-e0-0", "Failed")
    ours.await_pods("ours-0-e1-0")
    until(lambda: ours.status().get("restarts") == 1, "the status")
    assert others.pods() == []
    assert others.status() == {}
    # The one refusal is the question whether nodes may be seen.
    assert operator.metric(r'api_requests_total\{code="403"') == 1
    assert operator.metric(r"watch_restarts_total\{reason=\"WatchingError") == 0
    assert operator.end() == 0


@pytest.mark.parametrize(
    ("resource", "verb", "word"),
    [("pods", "list", "pods"), (names.PLURAL, "list", names.PLURAL), ("configmaps", "list", "configmaps")],
)
def test_a_right_that_is_missing_is_named(
    limited: Path, start: Start, resource: str, verb: str, word: str
) -> None:
    less = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}
        if resource in rule["resources"]
        else rule
        for rule in RULES
    ]
    _grant(less)
    operator = start("--leader-elect=false", kubeconfig=limited)
    until(lambda: operator.said("not ready yet"), "its complaint")
    code, text = operator.ask("/readyz")
    assert code == 503
    assert word in text
    assert verb in text
    assert operator.ask("/livez")[0] == 200
    _grant(RULES)
    operator.await_ready()
    assert operator.end() == 0


def test_wrong_settings_end_with_the_code_for_a_wrong_config(start: Start) -> None:
    wrong = start("--workers=none")
    assert wrong.wait(30) == 64
    assert wrong.said("wrong settings") is not None
