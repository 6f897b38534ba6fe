"""What ends a replica, and that it comes back whole, counted once, or is held with the reason."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from stage_api import names
from stage_api.outcome import ExitCode
from support.live_client import PROMPT, Client, TrafficMaker, kinds
from support.live_cluster import LiveCluster, kubectl, needs_cluster, needs_own_cluster, until
from support.live_operator import Release
from support.live_stage import LiveStage, StageMaker, example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]

NOBODY_THERE = 0
"""No answer: the Service had no pod to send to."""


def last(stage: LiveStage, replica: int = 0) -> dict[str, object]:
    """How the last life of a replica ended."""
    return dict(stage.replica(replica).get("history", {}).get("last") or {})


def test_a_killed_rank_fails_its_requests_with_a_word_and_a_new_life_serves(
    client: Client, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    stage = make_stage("killed").await_ready()
    traffic = make_traffic(stage, workers=4, steps=40)
    traffic.await_more(4)
    stage.signal_rank("killed-0-e0-0", signal.SIGKILL)
    stage.await_epoch(1)
    traffic.await_more(4)
    answers = traffic.end()
    failed = {kind: count for kind, count in kinds(answers).items() if kind[0] not in (200, NOBODY_THERE)}
    assert failed, kinds(answers)
    assert all(code and " " not in code for _, code in failed), failed
    assert last(stage)["exitCode"] == ExitCode.RANK_DIED
    assert last(stage)["rank"] == 0
    assert stage.status()["restarts"] == 1
    assert client.ask(stage.url).shows(PROMPT)


def test_a_pod_that_is_deleted_by_hand_comes_back_and_is_not_counted(
    client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("deleted").await_ready()
    kubectl(f"--namespace={stage.namespace}", "delete", "pod", "deleted-0-e0-0", "--wait=false")
    stage.await_epoch(1)
    assert last(stage)["reason"] == "Deleted"
    assert stage.status()["disruptions"] == 1
    assert stage.replica()["history"].get("recent", []) == []
    client.ask_until_served(stage.url)


def test_a_config_that_can_not_work_is_held_at_once_with_its_reason(make_stage: StageMaker) -> None:
    stage = make_stage("wrong", example(engine={"extensions": {"runner": "no.such.module:Runner"}}))
    until(lambda: stage.condition("Failed").get("status") == "True", "the stage to be held")
    failed = stage.condition("Failed")
    assert failed["reason"] == "ConfigInvalid"
    assert "no.such.module" in failed["message"]
    time.sleep(8)  # longer than any wait of its failure policy
    assert stage.pod_names() == ["wrong-0-e0-0"]
    assert stage.status().get("restarts", 0) == 0
    stage.patch({"engine": {"extensions": None}})
    stage.await_ready()
    assert stage.condition("Failed")["status"] == "False"


def test_a_spec_that_the_operator_refuses_makes_no_pod_and_says_why(make_stage: StageMaker) -> None:
    template = {"spec": {"containers": [{"name": names.CONTAINER, "image": "another"}]}}
    stage = make_stage("refused", example(podTemplate=template))
    until(lambda: stage.condition("Accepted").get("status") == "False", "the stage to be refused")
    assert "spec.engine.image" in stage.condition("Accepted")["message"]
    assert stage.pods() == []


def test_a_rank_that_hangs_is_ended_and_a_new_life_serves(
    client: Client, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    stage = make_stage("hung").await_ready()
    traffic = make_traffic(stage)
    traffic.await_more()
    stage.signal_rank("hung-0-e0-0", signal.SIGSTOP)
    stage.await_epoch(1)
    assert last(stage)["exitCode"] == ExitCode.HANG
    traffic.await_more()
    assert all(code for (status, code) in kinds(traffic.end()) if status != 200)


def test_a_pod_that_takes_more_memory_than_it_may_comes_back_and_says_so(make_stage: StageMaker) -> None:
    room = {"limits": {"memory": "1200Mi"}, "sharedMemory": "1Gi"}
    stage = make_stage("hungry", example(resources=room)).await_ready()
    fill = "head -c 1G /dev/zero >/dev/shm/fill & sleep 60"  # who looks on may be ended as well
    command = ["kubectl", f"--namespace={stage.namespace}", "exec", "hungry-0-e0-0", "--", "sh", "-c", fill]
    subprocess.run(command, capture_output=True, timeout=100, check=False)
    stage.await_epoch(1)
    assert last(stage)["reason"] == "OOMKilled"
    assert stage.status()["restarts"] == 1


def test_a_replica_that_fails_again_and_again_is_held_with_its_evidence(make_stage: StageMaker) -> None:
    stage = make_stage("failing", example(failurePolicy={"maxRestarts": 2})).await_ready()
    for epoch in range(3):
        stage.await_epoch(epoch)
        stage.signal_rank(f"failing-0-e{epoch}-0", signal.SIGKILL)
    until(lambda: stage.condition("Failed").get("status") == "True", "the stage to be held")
    assert stage.condition("Failed")["reason"] == "RestartBudgetExceeded"
    assert stage.status()["restarts"] == 2
    assert stage.pod_names() == ["failing-0-e2-0"]
    assert kubectl(f"--namespace={stage.namespace}", "logs", "failing-0-e2-0")
    annotation = f"{names.ANNOTATION_RESTART}=please"
    kubectl(f"--namespace={stage.namespace}", "annotate", names.PLURAL, "failing", annotation)
    stage.await_ready()
    assert stage.pod_names() == ["failing-0-e3-0"]


@needs_own_cluster
@pytest.mark.parametrize("after_s", [0.0, 0.6])
def test_an_operator_that_dies_amid_a_restart_neither_loses_nor_repeats_a_count(
    cluster: LiveCluster, operator: Release, make_stage: StageMaker, after_s: float
) -> None:
    stage = make_stage(f"amid-{int(10 * after_s)}").await_ready()
    stage.signal_rank(stage.pod_names()[0], signal.SIGKILL)
    time.sleep(after_s)
    assert sum(cluster.kill(pod) for pod in operator.pods()) >= 2
    stage.await_epoch(1)
    assert stage.status()["restarts"] == 1
    assert len(stage.replica()["history"]["recent"]) == 1
    assert last(stage)["exitCode"] == ExitCode.RANK_DIED
    assert stage.pod_names() == [f"{stage.name}-0-e1-0"]


def test_a_new_life_begins_within_seconds_of_the_end_of_the_last(make_stage: StageMaker) -> None:
    stage = make_stage("soon").await_ready()
    time.sleep(1.5)  # as its policy has it, a replica that was ready for a second starts again without a wait
    began = time.time()
    stage.signal_rank("soon-0-e0-0", signal.SIGKILL)
    until(lambda: "soon-0-e1-0" in stage.pod_names(), "the new pod")
    assert time.time() - began < 30
    stage.await_epoch(1)
