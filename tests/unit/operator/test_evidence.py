"""What ended a replica first, of all that its pods and nodes show."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_api.failure import Reason
from stage_api.outcome import ExitCode, TerminationReport
from stage_operator.decide import moments
from stage_operator.decide.evidence import first_end
from stage_operator.decide.remembered_status import time_text
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import Sight, observe
from stage_operator.values import Api, Objects, Seen
from support.sim_cluster import START_S, stage

NOW_S = START_S + 1000


def _pod(ordinal: int, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": names.pod_name("pics", 0, 3, ordinal),
        "uid": f"uid-{ordinal}",
        "creationTimestamp": time_text(START_S),
        "labels": {
            names.LABEL_REPLICA: "0",
            names.LABEL_EPOCH: "3",
            names.LABEL_ORDINAL: str(ordinal),
            names.LABEL_REVISION: "r",
        },
        "ownerReferences": [{"uid": "stage-uid", "controller": True}],
        **more.pop("metadata", {}),
    }
    return {
        "metadata": metadata,
        "spec": {"nodeName": more.pop("node", "node-0")},
        "status": {"phase": "Running", **more},
    }


def _over(code: int, at_s: float, reason: str = "Error", message: str = "", **more: Any) -> dict[str, Any]:
    over = {"exitCode": code, "reason": reason, "finishedAt": time_text(at_s), "message": message}
    states = [{"name": names.CONTAINER, "state": {"terminated": over}}]
    return {"phase": "Failed", "containerStatuses": states, **more}


def _deleted(asked_s: float, grace_s: int = 30) -> dict[str, Any]:
    return {"deletionTimestamp": time_text(asked_s + grace_s), "deletionGracePeriodSeconds": grace_s}


def _target(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


def _node(name: str = "node-0", **spec: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": time_text(START_S)}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [ready]}}


def _sight(*pods: dict[str, Any], node: dict[str, Any] | None = None, seen: Any = None) -> Sight:
    known = _node() if node is None else node
    return observe(Objects(stage(), Api(), pods, {"node-0": known}, seen=seen or {}))


def _first(
    *pods: dict[str, Any],
    missing: tuple[str, ...] = (),
    node: dict[str, Any] | None = None,
    seen: dict[str, dict[str, Seen]] | None = None,
) -> Any:
    sight = _sight(*pods, node=node, seen=seen)
    end = first_end(3, sight.pods, missing, sight, grace_s=45, timer=Timer(NOW_S))
    return None if end is None else end.evidence


def test_pods_that_run_show_no_end() -> None:
    assert _first(_pod(0), _pod(1)) is None


def test_the_pod_that_ended_first_counts() -> None:
    first = _first(_pod(0, **_over(70, NOW_S - 5)), _pod(1, **_over(74, NOW_S - 6)))
    assert (first.exit_code, first.epoch) == (74, 3)


@pytest.mark.parametrize("cause", [64, 65, 72, 74, 71, 1, 137])
@pytest.mark.parametrize("consequence", [70, 73, 0])
def test_in_one_second_a_cause_comes_before_its_consequence(cause: int, consequence: int) -> None:
    for codes in ((cause, consequence), (consequence, cause)):
        pods = [_pod(i, **_over(code, NOW_S - 5)) for i, code in enumerate(codes)]
        assert _first(*pods).exit_code == cause


def test_the_last_words_give_the_rank_and_the_message() -> None:
    report = TerminationReport(exit_code=ExitCode.RANK_DIED, reason="RankDied", message="rank 5 died", rank=5)
    first = _first(_pod(0, **_over(70, NOW_S, message=report.encode().decode())))
    assert (first.exit_code, first.rank, first.message, first.node) == (70, 5, "rank 5 died", "node-0")


def test_words_that_are_no_report_are_kept_from_their_end() -> None:
    first = _first(_pod(0, **_over(1, NOW_S, message="x" * 1000 + " the very end")))
    assert first.message.startswith("…")
    assert first.message.endswith(" the very end")
    assert len(first.message) == 256


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (_over(137, NOW_S, "OOMKilled"), Reason.OOM_KILLED),
        (_over(137, NOW_S, "ContainerStatusUnknown"), Reason.NODE_LOST),
        (_over(255, NOW_S, "Unknown"), Reason.NODE_LOST),
        (_over(255, NOW_S, "Error"), None),
        ({**_over(137, NOW_S), "reason": "Evicted", "message": "low on memory"}, Reason.EVICTED),
        ({**_over(143, NOW_S), "reason": "Terminated"}, Reason.NODE_DRAINED),
        ({**_over(137, NOW_S), **_target("PreemptionByScheduler")}, Reason.PREEMPTED),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, None),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}, None),
    ],
)
def test_each_way_to_end_has_its_reason(pod: dict[str, Any], reason: Reason | None) -> None:
    assert _first(_pod(0, **pod)).reason is reason


def test_a_pod_that_no_container_of_ran_says_why_it_was_refused() -> None:
    first = _first(_pod(0, phase="Failed", reason="UnexpectedAdmissionError", message="no such device"))
    assert (first.exit_code, first.message) == (None, "UnexpectedAdmissionError: no such device")


def test_a_failed_fetch_ends_a_replica_by_its_own_code() -> None:
    over = {
        "exitCode": 65,
        "reason": "Error",
        "finishedAt": time_text(NOW_S),
        "message": "no such repository",
    }
    fetch = [{"name": names.FETCH_CONTAINER, "state": {"terminated": over}}]
    main = [{"name": names.CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}]
    pod = _pod(0, phase="Failed", initContainerStatuses=fetch, containerStatuses=main)
    first = _first(pod)
    assert (first.exit_code, first.message) == (65, "no such repository")


def test_a_fetch_that_is_done_is_no_end() -> None:
    over = {"exitCode": 0, "reason": "Completed", "finishedAt": time_text(NOW_S)}
    fetch = [{"name": names.FETCH_CONTAINER, "state": {"terminated": over}}]
    assert _first(_pod(0, initContainerStatuses=fetch)) is None


@pytest.mark.parametrize(
    ("status", "node", "reason"),
    [
        ({}, None, Reason.DELETED),
        ({}, _node(unschedulable=True), Reason.NODE_DRAINED),
        (_target("EvictionByEvictionAPI"), None, Reason.EVICTED),
        (_target("EvictionByEvictionAPI"), _node(unschedulable=True), Reason.NODE_DRAINED),
        (_target("PreemptionByScheduler"), None, Reason.PREEMPTED),
        (_target("DeletionByTaintManager"), None, Reason.NODE_LOST),
        (_target("DeletionByPodGC"), None, Reason.NODE_LOST),
    ],
)
def test_a_pod_that_is_asked_to_go_says_who_asked(
    status: dict[str, Any], node: dict[str, Any] | None, reason: Reason
) -> None:
    assert _first(_pod(0, metadata=_deleted(NOW_S), **status), node=node).reason is reason


def test_what_a_pod_ends_with_once_it_was_asked_to_go_says_nothing() -> None:
    asked = _deleted(NOW_S - 10)
    for code in (0, 137, 143, 70):
        assert _first(_pod(0, metadata=asked, **_over(code, NOW_S - 5))).reason is Reason.DELETED


@pytest.mark.parametrize("code", [0, 70, 71, 137])
def test_what_a_pod_ended_with_before_it_was_asked_to_go_still_counts(code: int) -> None:
    pod = _pod(0, metadata=_deleted(NOW_S - 5), **_over(code, NOW_S))  # whatever its node's clock says
    seen = {"uid-0": {moments.ENDED: Seen(NOW_S - 2), moments.ASKED: Seen(NOW_S - 1)}}
    first = _first(pod, seen=seen)
    assert (first.exit_code, first.reason) == (code, None)


def test_an_api_server_leaves_no_grace_to_a_pod_that_had_ended_when_it_was_asked_to_go() -> None:
    first = _first(_pod(0, metadata=_deleted(NOW_S - 5, grace_s=0), **_over(70, NOW_S)))
    assert (first.exit_code, first.reason) == (70, None)


@pytest.mark.parametrize("skew_s", [-600, -60, -10, -1, 0, 1, 10, 60, 600])
@pytest.mark.parametrize("code", [0, 70, 137, 143])
@pytest.mark.parametrize("seen", ["by one look", "one after the other", "by nobody"])
def test_a_pod_that_ended_since_it_was_asked_to_is_not_counted_whatever_the_clock_of_its_node(
    skew_s: int, code: int, seen: str
) -> None:
    pod = _pod(0, metadata=_deleted(NOW_S - 5), **_over(code, NOW_S - 4 + skew_s))
    ended_s = NOW_S - 1 if seen == "by one look" else NOW_S
    known = {"uid-0": {moments.ASKED: Seen(NOW_S - 1), moments.ENDED: Seen(ended_s)}}
    assert _first(pod, seen={} if seen == "by nobody" else known).reason is Reason.DELETED


def test_the_ranks_that_miss_a_deleted_pod_are_not_the_cause() -> None:
    gone = "pics-0-e3-1"
    for code in (70, 73, 0):
        assert _first(_pod(0, **_over(code, NOW_S - 3)), missing=(gone,)).reason is Reason.DELETED
    assert _first(_pod(0, **_over(72, NOW_S - 3)), missing=(gone,)).exit_code == 72


def test_ranks_that_waited_in_vain_for_a_pod_without_a_node_are_not_to_blame() -> None:
    waiting = _pod(1, phase="Pending")
    assert _first(_pod(0, **_over(73, NOW_S)), waiting).reason is Reason.INCOMPLETE
    assert _first(_pod(0, **_over(74, NOW_S)), waiting).reason is None
    running = [{"name": names.CONTAINER, "state": {"running": {"startedAt": time_text(NOW_S - 60)}}}]
    assert _first(_pod(0, **_over(73, NOW_S)), _pod(1, containerStatuses=running)).reason is None


def test_a_node_that_is_gone_or_out_of_service_is_lost_at_once() -> None:
    sight = observe(Objects(stage(), Api(), (_pod(0),), {}))
    end = first_end(3, sight.pods, (), sight, grace_s=45, timer=Timer(NOW_S))
    assert end is not None
    assert end.evidence.reason is Reason.NODE_LOST
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    assert _first(_pod(0), node=_node(taints=[taint])).reason is Reason.NODE_LOST


def test_where_nodes_cannot_be_seen_a_missing_one_says_nothing() -> None:
    sight = observe(Objects(stage(), Api(nodes=False), (_pod(0),), {}))
    assert first_end(3, sight.pods, (), sight, grace_s=45, timer=Timer(NOW_S)) is None


def test_pods_that_cannot_be_made_sense_of_are_strangers() -> None:
    odd = _pod(0)
    odd["metadata"]["name"] = "pics-0-ethree-0"
    other = _pod(1)
    other["metadata"]["ownerReferences"][0]["uid"] = "another"
    orphan = _pod(2)
    del orphan["metadata"]["ownerReferences"]
    sight = _sight(odd, other, orphan)
    assert sight.pods == ()
    assert sight.strangers == {"pics-0-ethree-0", "pics-0-e3-1", "pics-0-e3-2"}
