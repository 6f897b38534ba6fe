"""The operator's panels on a real Prometheus, which scrapes the real operator while it keeps a stage.

The control plane is enough: the test says of pods what a kubelet would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stage_api import names
from stage_operator.decide.remembered_status import time_text
from support.live_cluster import needs_api_server
from support.operator_process import install_crd, kubectl, until
from support.prometheus import Prometheus, expressions, free_port, needs_prometheus, pages
from support.stage_process import ROOT, environment

NAMESPACE = f"omnistage-watched-test-{os.getpid()}"  # one that is going can't be made
READY = "omnistage_operator_stage_ready"
STAGE = f"""
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: watched, namespace: {NAMESPACE}}}
spec:
  model: {{source: {{embedded: shapes}}}}
  failurePolicy: {{backoff: {{initialSeconds: 1}}}}
"""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    needs_prometheus,
    *needs_api_server,
]


def in_namespace(*arguments: str, stdin: object = None) -> str:
    return kubectl(f"--namespace={NAMESPACE}", *arguments, stdin=stdin)


def await_pod(epoch: int) -> str:
    """The name of that life's pod, once it is there."""
    name = names.pod_name("watched", 0, epoch, 0)
    until(lambda: name in in_namespace("get", "pods", "-o", "name"), f"pod {name}")
    return name


def tell(pod: str, phase: str) -> None:
    """Say of a pod what a kubelet would."""
    running = phase == "Running"
    state = {"running": {}} if running else {"terminated": {"exitCode": 70, "reason": "Error"}}
    container = {"name": names.CONTAINER, "image": "i", "imageID": "i", "ready": running, "restartCount": 0}
    status = {
        "phase": phase,
        "conditions": [
            {"type": "Ready", "status": str(running), "lastTransitionTime": time_text(time.time())}
        ],
        "containerStatuses": [{**container, "state": state}],
    }
    in_namespace(
        "patch",
        "pod",
        pod,
        "--subresource=status",
        "--type=merge",
        f"--patch={json.dumps({'status': status})}",
    )


def is_ready() -> bool:
    return in_namespace("get", names.PLURAL, "watched", "-o", "jsonpath={.status.ready}") == "1/1"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has watched the operator bring a stage up, lose it and bring it back."""
    folder = tmp_path_factory.mktemp("watched")
    install_crd()
    kubectl("create", "namespace", NAMESPACE)
    port = free_port()
    command = [sys.executable, "-m", "stage_operator", "--worker-image=none", f"--port={port}"]
    command += [f"--namespaces={NAMESPACE}", f"--lease-namespace={NAMESPACE}", "--watch-nodes=false"]
    command += ["--resync-seconds=5"]
    path = f"{ROOT / 'crds'}:{ROOT / 'operator'}"
    with (folder / "operator.log").open("w") as log:
        operator = subprocess.Popen(command, env=environment() | {"PYTHONPATH": path}, stderr=log)
        try:
            with Prometheus(folder, {f"127.0.0.1:{port}": {"pod": "operator-a"}}) as watching:
                until(lambda: watching.latest("omnistage_operator_leader == 1"), "the operator leads")
                in_namespace("apply", "-f", "-", stdin=STAGE)
                tell(await_pod(0), "Running")
                until(is_ready, "the stage is ready")
                until(lambda: watching.latest(f"max({READY}) == 1"), "that was scraped")
                tell(await_pod(0), "Failed")
                until(lambda: watching.latest(f"max({READY}) == bool 0"), "its end was scraped")
                tell(await_pod(1), "Running")
                until(is_ready, "the stage is ready again")
                for count in (
                    "omnistage_operator_stage_restarts_total",
                    "omnistage_operator_group_recovery_seconds_count",
                    "changes(omnistage_operator_resync_duration_seconds_count[1m])",
                ):
                    until(lambda count=count: watching.latest(f"sum({count}) >= 1"), f"{count} was scraped")
                yield watching
        finally:
            operator.terminate()
            operator.wait(30)
            kubectl("delete", "namespace", NAMESPACE, "--wait=false")
            print((folder / "operator.log").read_text())  # noqa: T201 - shown where the test failed


def test_the_operators_panels_show_something(prometheus: Prometheus) -> None:
    told = [
        (name, title, expression)
        for name, page in pages()
        for title, expression in expressions(page)
        if "omnistage_operator_" in expression or "process_" in expression
    ]
    assert {name for name, _, _ in told} == {"fleet", "operator"}
    empty = [
        f"{name}: {title}: {expression}"
        for name, title, expression in told
        if not any(numbers for _, numbers in prometheus.values(expression))
    ]
    assert empty == []


def test_the_restart_is_told_with_its_reason_and_its_end(prometheus: Prometheus) -> None:
    ((labels, restarts),) = prometheus.values("omnistage_operator_stage_restarts_total")
    assert (labels["namespace"], labels["stage"]) == (NAMESPACE, "watched")
    assert (restarts[0], restarts[-1]) == (0, 1)
    assert prometheus.latest("sum(omnistage_operator_group_restarts_total) == 1")
    assert prometheus.latest("sum(omnistage_operator_group_recovery_seconds_count) == 1")


def test_the_stage_is_well_in_the_end_and_was_not_in_between(prometheus: Prometheus) -> None:
    ((_, ready),) = prometheus.values(READY)
    assert {0, 1} == set(ready)
    assert ready[-1] == 1
    available = prometheus.values('omnistage_operator_stage_condition{condition="Available"}')
    assert {labels["reason"] for labels, _ in available} >= {"ReplicasAvailable", "NoReplicaServes"}
