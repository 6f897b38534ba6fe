"""The operator's loop on a real API server, which is made to misbehave by a proxy before it.

The plan is a plain one: what is shown here is everything around it. Needs KUBECONFIG, kubectl and the right to make
namespaces and a CustomResourceDefinition; no node is needed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage_api import crdgen, names
from stage_operator.observed.definition_watch import LOOK_S
from support.live_cluster import needs_api_server
from support.operator_process import WAIT_S, OperatorProcess, Proxy, Stage, install_crd, kubectl, until

NAMESPACE = "omnistage-loop-test"
SOON_S = 5.0
"""A deletion that a watch lost is noticed about so long after it began anew, on a machine with nothing else to do."""

pytestmark = [
    pytest.mark.cluster,
    *needs_api_server,
]


@pytest.fixture(scope="module", autouse=True)
def _namespace() -> Iterator[None]:
    install_crd()
    kubectl("create", "namespace", NAMESPACE)
    yield
    kubectl("delete", names.PLURAL, "--all", f"--namespace={NAMESPACE}")
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def operator(proxy: Proxy, tmp_path: Path) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(proxy.kubeconfig(tmp_path), "--leader-elect=false")
    try:
        yield operator.await_ready()
        assert not operator.runs or operator.end() == 0
    finally:
        operator.kill()


def stage(name: str, replicas: int = 1, *options: str) -> Stage:
    return Stage(NAMESPACE, name, replicas=replicas, options=options)


def test_a_stage_gets_its_pods_and_shows_how_they_are(operator: OperatorProcess) -> None:
    made = stage("made", 2)
    made.await_pods("made-0-e0-0", "made-1-e0-0")
    for pod in made.pods():
        made.tell(pod, "Running")
    until(lambda: made.status().get("ready") == "2/2", "the status")
    assert made.status()["observedGeneration"] == made.get()["metadata"]["generation"]
    kubectl(f"--namespace={NAMESPACE}", "scale", names.PLURAL, "made", "--replicas=1")
    made.await_pods("made-0-e0-0")
    until(lambda: made.status().get("ready") == "1/1", "the status")


def test_ends_are_counted_exactly_and_before_anything_is_deleted(operator: OperatorProcess) -> None:
    counted = stage("counted")
    for epoch in range(4):
        counted.await_pods(f"counted-0-e{epoch}-0")
        counted.tell(f"counted-0-e{epoch}-0", "Failed")
    counted.await_pods("counted-0-e4-0")
    assert counted.status()["restarts"] == 4


def test_at_rest_nothing_is_written(operator: OperatorProcess) -> None:
    idle = stage("idle", 2)
    idle.await_pods("idle-0-e0-0", "idle-1-e0-0")
    until(lambda: idle.status().get("ready") == "0/2", "the status")
    time.sleep(1)
    before, version = operator.writes(), idle.get()["metadata"]["resourceVersion"]
    time.sleep(10)
    assert operator.writes() == before
    assert idle.get()["metadata"]["resourceVersion"] == version


def test_after_its_restart_an_operator_finds_nothing_to_do(operator: OperatorProcess, tmp_path: Path) -> None:
    kept = stage("kept", 2)
    kept.await_pods("kept-0-e0-0", "kept-1-e0-0")
    until(lambda: kept.status().get("ready") == "0/2", "the status")
    version = kept.get()["metadata"]["resourceVersion"]
    uids = kubectl(f"--namespace={NAMESPACE}", "get", "pods", "-o", "jsonpath={..uid}")
    operator.kill()
    second = OperatorProcess(os.environ["KUBECONFIG"], "--leader-elect=false").await_ready()
    until(lambda: second.metric("reconcile_total") > 0, "a look at the stages")
    assert (
        second.metric(r'api_requests_total\{.*resource="(pods|services)",verb="(create|apply|delete)"') == 0
    )
    assert kubectl(f"--namespace={NAMESPACE}", "get", "pods", "-o", "jsonpath={..uid}") == uids
    assert kept.get()["metadata"]["resourceVersion"] == version
    assert second.end() == 0


@pytest.mark.parametrize("order", ["cut", "expire", "fail 500", "fail 429", "fail 504"])
def test_a_pod_that_is_deleted_while_nothing_is_heard_comes_back(
    operator: OperatorProcess, proxy: Proxy, order: str
) -> None:
    lost = stage(f"lost-{order.replace(' ', '-')}", 2)
    pods = [f"{lost.name}-0-e0-0", f"{lost.name}-1-e0-0"]
    lost.await_pods(*pods)
    until(lambda: lost.status().get("ready") == "0/2", "the status")
    proxy.order("deaf")
    lost.delete_pods(*pods)
    assert lost.pods() == []
    proxy.order("hear")
    proxy.order(order)
    lost.await_pods(*pods, within_s=SOON_S + 10)
    assert operator.metric("cache_ghosts_dropped_total") >= (0 if order == "cut" else 2)
    assert operator.runs
    assert operator.ask("/livez") == (200, "ok")


def test_an_api_server_that_is_down_for_a_while_is_awaited(operator: OperatorProcess, proxy: Proxy) -> None:
    waiting = stage("waiting")
    waiting.await_pods("waiting-0-e0-0")
    proxy.order("down")
    proxy.order("cut")
    waiting.delete_pods("waiting-0-e0-0")
    time.sleep(8)
    assert operator.ask("/livez") == (200, "ok")
    proxy.order("up")
    waiting.await_pods("waiting-0-e0-0", within_s=SOON_S + 5)


def test_a_busy_api_server_is_given_the_time_that_it_asks_for(
    operator: OperatorProcess, proxy: Proxy
) -> None:
    proxy.order("busy 4")
    busy = stage("busy", 2)
    busy.await_pods("busy-0-e0-0", "busy-1-e0-0")
    assert operator.metric(r'api_requests_total\{code="429"') == 4
    assert operator.metric("api_throttled_seconds_total") > 0


def test_a_status_that_changes_all_the_time_is_written_twice_a_second(operator: OperatorProcess) -> None:
    endless = stage("endless", 1, "ENDLESS")
    until(lambda: endless.status().get("model"), "the first status")
    before = operator.metric(r'status_writes_total\{result="stored"\}')
    looks = operator.metric(r'reconcile_total\{result="ok"\}')
    time.sleep(4)
    written = operator.metric(r'status_writes_total\{result="stored"\}') - before
    assert 5 <= written <= 10
    assert operator.metric(r'reconcile_total\{result="ok"\}') - looks > 3 * written
    kubectl("delete", names.PLURAL, "endless", f"--namespace={NAMESPACE}")


def test_others_may_write_to_a_stage_at_the_same_time(operator: OperatorProcess) -> None:
    shared = stage("shared")
    for epoch in range(3):
        shared.await_pods(f"shared-0-e{epoch}-0")
        shared.tell(f"shared-0-e{epoch}-0", "Failed")
        for number in range(5):
            kubectl(
                f"--namespace={NAMESPACE}",
                "annotate",
                names.PLURAL,
                "shared",
                f"n={epoch}-{number}",
                "--overwrite",
            )
    shared.await_pods("shared-0-e3-0")
    until(lambda: shared.status().get("restarts") == 3, "the count")
    assert shared.get()["metadata"]["annotations"]["n"] == "2-4"


def test_a_child_that_somebody_deleted_or_changed_is_put_right_by_the_next_list(
    proxy: Proxy, tmp_path: Path
) -> None:
    operator = OperatorProcess(proxy.kubeconfig(tmp_path), "--leader-elect=false", "--resync-seconds=5")
    operator.await_ready()
    drifted = stage("drifted")
    drifted.await_pods("drifted-0-e0-0")
    where = f"--namespace={NAMESPACE}"
    selector = json.dumps({"spec": {"selector": {names.LABEL_STAGE: "nobody"}}})
    kubectl(where, "patch", "service", "drifted", "--type=merge", f"--patch={selector}")
    path = "jsonpath={.spec.selector.omnistage\\.io/stage}"
    until(
        lambda: kubectl(where, "get", "service", "drifted", "-o", path) == "drifted",
        "the selector",
        within_s=15,
    )
    assert operator.end() == 0


def test_a_secret_is_made_and_not_read(operator: OperatorProcess) -> None:
    secret = stage("secret", 1, "SECRET")
    secret.await_pods("secret-0-e0-0")
    kubectl(f"--namespace={NAMESPACE}", "get", "secret", names.keys_secret("secret"))
    assert operator.metric(r'api_requests_total\{.*resource="secrets",verb="create"') == 1
    assert operator.metric(r'api_requests_total\{.*resource="secrets",verb="(get|list)"') == 0


def test_people_are_told_in_events_once(operator: OperatorProcess) -> None:
    told = stage("told")
    told.await_pods("told-0-e0-0")

    def events() -> list[dict[str, object]]:
        found = json.loads(kubectl(f"--namespace={NAMESPACE}", "get", "events.events.k8s.io", "-o", "json"))
        return [each for each in found["items"] if each["regarding"].get("name") == "told"]

    (event,) = until(events, "an event")
    assert event["reason"] == "Creating"
    assert event["reportingController"] == "omnistage-operator"


def test_a_stage_that_cannot_be_read_does_not_stop_the_others(operator: OperatorProcess) -> None:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
    anything = [{"op": "replace", "path": path, "value": {"x-kubernetes-preserve-unknown-fields": True}}]
    kubectl("patch", "crd", names.CRD_NAME, "--type=json", f"--patch={json.dumps(anything)}")
    odd = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": {"engine": 7}}
    metadata = {"name": "odd", "namespace": NAMESPACE}
    try:
        until(lambda: _is_created({**odd, "metadata": metadata}), "the old schema")
    finally:
        install_crd()
    until(lambda: operator.metric("failing_stages") == 1, "the failure")
    well = stage("well")
    well.await_pods("well-0-e0-0")
    assert operator.runs
    kubectl("delete", names.PLURAL, "odd", f"--namespace={NAMESPACE}")
    until(lambda: operator.metric("failing_stages") == 0, "the end of the failure")


def _is_created(manifest: dict[str, object]) -> bool:
    try:
        kubectl("create", "-f", "-", stdin=manifest)
    except AssertionError:
        return False
    return True


def test_a_definition_that_is_taken_back_stops_the_operator_until_it_is_whole_again(
    operator: OperatorProcess,
) -> None:
    one = stage("whole")
    one.await_pods("whole-0-e0-0")
    older = crdgen.crd()
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"]["replicaStatuses"]
    try:
        kubectl("replace", "-f", "-", stdin=older)
        until(lambda: operator.ask("/readyz")[0] == 503, "it to be noticed", within_s=WAIT_S + LOOK_S)
        assert "status.replicaStatuses" in operator.ask("/readyz")[1]
        written = operator.writes()
        one.delete_pods("whole-0-e0-0")
        kubectl(f"--namespace={NAMESPACE}", "wait", "--for=delete", "pod/whole-0-e0-0", "--timeout=20s")
        assert operator.writes() == written, "nothing is done that could not be remembered"
    finally:
        kubectl("replace", "-f", "-", stdin=crdgen.crd())
    until(lambda: operator.ask("/readyz")[0] == 200, "it to be whole", within_s=WAIT_S + LOOK_S)
    until(one.pods, "what was put off to be done")
