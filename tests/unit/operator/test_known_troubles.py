"""What operators of other projects were found to get wrong: endless lives, pods that pile up, names in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stage_api.failure import FailurePolicySpec
from stage_api.manifest import parse_stage
from stage_operator.manifests.children import children
from stage_operator.manifests.pod import pods
from stage_operator.values import Api, CreatePod
from support.sim_cluster import SETTINGS, SimCluster, stage
from support.sim_operator import SimOperator

_QUARTER_S = 15 * 60
_STEP_S = 5
_MOST_LIVES = FailurePolicySpec().max_restarts + 1
_FIELDS = (
    *(
        "affinity",
        "containerPort",
        "containers",
        "devicePath",
        "env",
        "hostAliases",
        "hostPath",
        "initContainers",
        "ip",
    ),
    *(
        "key",
        "mountPath",
        "name",
        "nodeName",
        "ports",
        "tolerations",
        "volumeDevices",
        "volumeMounts",
        "volumes",
    ),
)


def _watch(cluster: SimCluster, fail: Callable[[str], None]) -> tuple[int, int, set[str]]:
    """A quarter of an hour in which each pod fails: pods made, the most at once, and what Ready was."""
    operator = SimOperator(cluster)
    most, ready = 0, set()
    for _ in range(_QUARTER_S // _STEP_S):
        operator.see_all()
        operator.turn()
        most = max(most, len(cluster.pods))
        ready.add(cluster.condition("Ready")["status"])
        cluster.reap()
        cluster.schedule()
        for name in list(cluster.pods):
            fail(name)
        cluster.now_s += _STEP_S
    return sum(isinstance(action, CreatePod) for action in cluster.log), most, ready


def test_what_fails_for_good_gets_as_many_lives_as_are_allowed_and_tells_why_meanwhile() -> None:
    cluster = SimCluster(stage())

    def fail(name: str) -> None:
        if cluster.pods[name]["status"]["phase"] == "Pending":
            cluster.start()
            cluster.exit(name, 1, "no such file: /nope")

    made, most, ready = _watch(cluster, fail)
    assert 3 <= made <= _MOST_LIVES
    assert most <= 2
    assert ready == {"False"}
    assert "exit code 1" in cluster.condition("Degraded")["message"]
    assert "no such file: /nope" in cluster.condition("Degraded")["message"]
    assert cluster.condition("Degraded")["status"] == "True"


def test_pods_that_a_node_refuses_do_not_pile_up() -> None:
    cluster = SimCluster(stage(parallelism={"data": 2}, topology={"ranksPerPod": 1}))

    def refuse(name: str) -> None:
        status = cluster.pods[name]["status"]
        status |= {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"}

    made, most, ready = _watch(cluster, refuse)
    assert made <= 2 * _MOST_LIVES
    assert most <= 4
    assert ready == {"False"}
    assert "UnexpectedAdmissionError: no such device" in cluster.condition("Degraded")["message"]


def test_nothing_of_a_stage_can_keep_a_namespace_from_going() -> None:
    raw = stage(parallelism={"data": 2}, topology={"ranksPerPod": 1})
    sound = parse_stage(raw, executable=True)
    api = Api(pod_monitor="monitoring.coreos.com/v1")
    made: list[dict[str, Any]] = [*children(sound, api, [0]), *pods(sound, 0, 0, settings=SETTINGS, api=api)]
    assert made
    for each in made:
        assert "finalizers" not in each["metadata"]
        assert all(not owner["blockOwnerDeletion"] for owner in each["metadata"]["ownerReferences"])


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "stage", "x"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(_FIELDS), below, max_size=2),
    max_leaves=8,
)


@given(
    container=st.dictionaries(st.sampled_from(_FIELDS), _ANYTHING, max_size=3),
    more=st.dictionaries(st.sampled_from(_FIELDS), _ANYTHING, max_size=3),
    name=st.just("stage") | _ANYTHING,
    ranks=st.sampled_from([{}, {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}]),
)
def test_whatever_a_pod_template_holds_is_refused_with_its_place_or_left_to_the_api_server(
    container: dict[str, Any], more: dict[str, Any], name: Any, ranks: dict[str, Any]
) -> None:
    template = {"spec": {"containers": [{**container, "name": name}], **more}}
    cluster = SimCluster(stage(podTemplate=template, **ranks))
    SimOperator(cluster).turn()
    accepted = cluster.condition("Accepted")
    assert cluster.pods if accepted["status"] == "True" else "spec.podTemplate.spec." in accepted["message"]
