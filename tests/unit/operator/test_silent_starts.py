"""A pod that doesn't start is told of, by whoever knows why: its kubelet, its scheduler, or an event about it."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_api.pod_facts import PodFacts
from stage_api.startup_progress import Activity, StartProgress
from stage_operator.values import PodEvent, Said
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

POD = "pics-0-e0-0"
HUB = {"model": {"source": {"huggingFace": {"repo": "some/model", "revision": "a" * 40}}}}


def bound(**spec: Any) -> tuple[SimCluster, SimOperator]:
    """A stage whose pod has found its node, and nothing more."""
    cluster = SimCluster(stage(**spec))
    operator = SimOperator(cluster)
    operator.turn()
    cluster.schedule()
    return cluster, operator


def turn(operator: SimOperator) -> None:
    operator.see_all()
    operator.turn()


def say(cluster: SimCluster, operator: SimOperator, said: Said, pod: str = POD) -> None:
    operator.said = {cluster.pods[pod]["metadata"]["uid"]: said}
    turn(operator)


def waits(cluster: SimCluster, reason: str, container: str, kind: str) -> None:
    state = {"waiting": {"reason": reason, "message": 'secret "hub" not found'}}
    cluster.pods[POD]["status"][kind] = [{"name": container, "state": state}]


def told(operator: SimOperator, reason: str) -> list[str]:
    return [event.message for event in operator.told if event.reason == reason]


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        (names.CONTAINER, "containerStatuses"),
        (names.FETCH_CONTAINER, "initContainerStatuses"),
        ("sidecar", "initContainerStatuses"),
        ("sidecar", "containerStatuses"),
    ],
)
@pytest.mark.parametrize(
    "reason",
    [
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "ErrImagePull",
        "InvalidImageName",
        "CrashLoopBackOff",
        "PostStartHookError",
        "SignatureValidationFailed",
        "AWordOfALaterKubelet",
    ],
)
def test_what_a_container_waits_for_is_told_whichever_it_is_and_whatever_the_word(
    container: str, kind: str, reason: str
) -> None:
    cluster, operator = bound()
    waits(cluster, reason, container, kind)
    turn(operator)
    shown = "ImagePullBackOff" if reason == "ErrImagePull" else reason
    assert cluster.condition("Degraded")["reason"] == shown
    assert cluster.condition("Ready")["reason"] == shown
    assert (
        f'pod {POD}: container {container}: secret "hub" not found' in cluster.condition("Ready")["message"]
    )
    assert len(told(operator, shown)) == 1
    turn(operator)
    assert len(told(operator, shown)) == 1, "a thing is told once"
    cluster.pods[POD]["status"].pop(kind)
    operator.settle()
    assert cluster.status["phase"] == "Ready"
    assert cluster.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_a_container_that_waits_as_it_should_is_no_trouble(reason: str) -> None:
    cluster, operator = bound()
    waits(cluster, reason, names.CONTAINER, "containerStatuses")
    turn(operator)
    assert cluster.condition("Degraded")["status"] == "False"
    assert cluster.status["phase"] == "Starting" or cluster.status["phase"] == "Provisioning"


@pytest.mark.parametrize(
    ("reason", "note"),
    [
        ("FailedMount", 'MountVolume.SetUp failed for volume "omnistage-token" : secret "hub" not found'),
        ("FailedMount", 'MountVolume.SetUp failed for volume "x" : configmap "extra" not found'),
        ("FailedMount", 'references non-existent secret key: token for volume "omnistage-token"'),
        ("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) a-0'),
        ("FailedCreatePodSandBox", "no free addresses"),
    ],
)
def test_what_the_cluster_tells_of_a_pod_that_does_not_start_is_told_of_the_stage(
    reason: str, note: str
) -> None:
    cluster, operator = bound()
    say(cluster, operator, Said(event=PodEvent(is_warning=True, reason=reason, note=note)))
    degraded = cluster.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    for word in (POD, cluster.pods[POD]["spec"]["nodeName"], note):
        assert word in degraded["message"]
    assert cluster.status["phase"] == "Degraded"
    assert len(told(operator, reason)) == 1
    operator.said = {}
    operator.settle()
    assert cluster.status["phase"] == "Ready"
    assert cluster.status["restarts"] == 0


def test_a_pod_that_is_getting_on_is_no_trouble() -> None:
    cluster, operator = bound()
    say(cluster, operator, Said(event=PodEvent(is_warning=False, reason="Pulling", note='Pulling image "x"')))
    assert cluster.condition("Degraded")["status"] == "False"
    assert cluster.status["replicaStatuses"][0]["start"] == 'Pulling image "x"'
    assert cluster.condition("Ready")["message"] == '0 of 1 replicas serve; replica 0: Pulling image "x"'


def test_no_node_for_a_pod_is_told_at_once_and_again_only_when_it_was_over() -> None:
    cluster = SimCluster(stage(), nodes=0)
    operator = SimOperator(cluster)
    for _ in range(3):
        turn(operator)
        cluster.schedule()
    assert len(told(operator, "Unschedulable")) == 1
    assert "nodes have room" in told(operator, "Unschedulable")[0]
    cluster.add_node("node-0")
    operator.settle()
    assert cluster.status["phase"] == "Ready"


def test_a_pod_that_may_not_be_scheduled_yet_says_for_what_it_waits() -> None:
    cluster = SimCluster(stage())
    operator = SimOperator(cluster)
    operator.turn()
    cluster.pods[POD]["spec"]["schedulingGates"] = [{"name": "queue.example/quota"}]
    turn(operator)
    scheduled = cluster.condition("Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("Unknown", "SchedulingGated")
    assert POD in scheduled["message"]
    assert "queue.example/quota" in scheduled["message"]
    del cluster.pods[POD]["spec"]["schedulingGates"]
    operator.settle()
    assert cluster.condition("Scheduled")["status"] == "True"


def test_a_surge_that_a_volume_holds_up_is_told_while_the_old_replica_serves() -> None:
    cluster = SimCluster(stage(rollout={"maxUnavailable": 0, "maxSurge": 1}))
    operator = SimOperator(cluster)
    operator.settle()
    cluster.edit(resources={"requests": {"cpu": "2"}})
    turn(operator)
    cluster.schedule()
    surge = next(name for name in cluster.pods if name != POD)
    multi = PodEvent(
        is_warning=True, reason="FailedAttachVolume", note='Multi-Attach error for volume "pvc-1"'
    )
    say(cluster, operator, Said(event=multi), surge)
    ready = cluster.condition("Ready")
    assert ready["status"] == "False"
    assert cluster.status["phase"] != "Ready"
    degraded = cluster.condition("Degraded")
    assert degraded["reason"] == "FailedAttachVolume"
    assert surge in degraded["message"]
    assert "pvc-1" in degraded["message"]


@pytest.mark.parametrize("after_s", [0, 601, 4000])
def test_a_stage_that_is_not_ready_never_has_the_phase_ready(after_s: int) -> None:
    cluster = SimCluster(stage(rollout={"maxUnavailable": 0, "maxSurge": 1}))
    operator = SimOperator(cluster)
    operator.settle()
    cluster.edit(resources={"requests": {"cpu": "2"}})
    turn(operator)
    cluster.schedule()
    turn(operator)
    cluster.now_s += after_s
    turn(operator)
    turn(operator)
    assert cluster.condition("Ready")["status"] == "False"
    assert cluster.status["phase"] == "Updating"


def test_a_long_start_says_what_it_does() -> None:
    cluster, operator = bound(**HUB)
    cluster.start()
    progress = StartProgress(activity=Activity.LOADING, what="transformer", done=2, total=5)
    say(cluster, operator, Said(start=progress))
    text = "loading the model: transformer, 2 of 5 components"
    assert cluster.status["replicaStatuses"][0]["start"] == text
    assert cluster.condition("Ready")["message"] == f"0 of 1 replicas serve; replica 0: {text}"
    assert text in cluster.condition("ModelReady")["message"]
    operator.said = {}
    operator.settle()
    assert "start" not in cluster.status["replicaStatuses"][0]
    assert cluster.condition("ModelReady")["status"] == "True"


FACTS = PodFacts.of({"data": [{"pipeline": "P", "capability": {"batches": True, "resumable": True}}]})
SOLO = PodFacts.of({"data": [{"pipeline": "P", "capability": {"batches": False, "reason": "x"}}]})


def test_what_a_ready_pod_tells_is_shown_until_its_spec_is_another() -> None:
    cluster, operator = bound()
    assert cluster.condition("FactsKnown")["reason"] == "NoReplicaServes"
    operator.settle()
    assert (cluster.condition("FactsKnown")["status"], cluster.condition("FactsKnown")["reason"]) == (
        "Unknown",
        "NotAskedYet",
    )
    say(cluster, operator, Said(facts=FACTS))
    assert cluster.condition("FactsKnown")["status"] == "True"
    facts = cluster.status["facts"]
    assert (facts["replica"], facts["revision"]) == (0, cluster.status["revision"])
    assert facts["capability"]["batches"] is True
    operator.said = {}
    turn(operator)
    assert cluster.status["facts"] == facts, "whoever starts anew knows it from the status"
    cluster.edit(resources={"requests": {"cpu": "2"}})
    operator.settle()
    assert "facts" not in cluster.status


def test_a_pod_that_cannot_be_asked_is_unknown_and_nothing_else_changes() -> None:
    cluster, operator = bound()
    operator.settle()
    pods, before = dict(cluster.pods), cluster.status
    say(cluster, operator, Said(unreachable="10.0.0.7:8000: no answer within 3 s"))
    known = cluster.condition("FactsKnown")
    assert (known["status"], known["reason"]) == ("Unknown", "Unreachable")
    assert "10.0.0.7:8000: no answer" in known["message"]
    assert cluster.pods == pods
    assert cluster.condition("Ready")["status"] == "True"
    assert {**cluster.status, "conditions": ()} == {**before, "conditions": ()}


def test_replicas_that_tell_something_else_are_named() -> None:
    cluster = SimCluster(stage(replicas=3))
    operator = SimOperator(cluster)
    operator.settle()
    uids = [cluster.pods[f"pics-{i}-e0-0"]["metadata"]["uid"] for i in range(3)]
    operator.said = {uids[0]: Said(facts=FACTS), uids[1]: Said(facts=FACTS), uids[2]: Said(facts=SOLO)}
    turn(operator)
    assert cluster.condition("FactsKnown")["reason"] == "ReplicasDiffer"
    assert cluster.condition("FactsKnown")["message"].endswith("than: 2")
