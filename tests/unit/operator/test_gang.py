"""Which group the pods of one life are scheduled by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stage_api.surroundings import GangMode
from stage_operator.manifests.gang import fault, mode, pod_group
from stage_operator.manifests.pod import pods
from stage_operator.values import Api, PlanSettings
from support.stages import TWO_PODS, stage_of

NONE = Api()
ALL = Api(
    pod_group="scheduling.k8s.io/v1beta1",
    volcano="scheduling.volcano.sh/v1beta1",
    coscheduling="scheduling.x-k8s.io/v1alpha1",
)
SETTINGS = PlanSettings(worker_image="worker:1")


def spanning(asked: str = "Auto", **gang: Any) -> Any:
    return stage_of(gang={"mode": asked, **gang}, **TWO_PODS)


@pytest.mark.parametrize("asked", list(GangMode))
def test_a_replica_of_one_pod_needs_no_group(asked: GangMode) -> None:
    stage = stage_of(gang={"mode": asked.value})
    assert mode(stage, ALL) is GangMode.NONE
    assert fault(stage, NONE) is None
    assert pod_group(stage, 0, 0, ALL) is None


@pytest.mark.parametrize(
    ("api", "chosen"),
    [
        (ALL, GangMode.POD_GROUP),
        (replace(ALL, pod_group=None), GangMode.VOLCANO),
        (replace(ALL, pod_group=None, volcano=None), GangMode.COSCHEDULING),
        (NONE, GangMode.NONE),
    ],
)
def test_auto_takes_the_best_that_the_cluster_serves(api: Api, chosen: GangMode) -> None:
    assert mode(spanning(), api) is chosen
    assert fault(spanning(), api) is None


def test_what_was_asked_for_is_taken_and_refused_where_it_is_not_served() -> None:
    assert mode(spanning("Coscheduling"), ALL) is GangMode.COSCHEDULING
    refused = fault(spanning("Coscheduling"), replace(ALL, coscheduling=None))
    assert str(refused) == (
        "spec.gang.mode: expected a kind that the cluster serves (PodGroup, Volcano), got Coscheduling"
    )
    assert mode(spanning("None"), ALL) is GangMode.NONE


@pytest.mark.parametrize(
    ("asked", "api_version", "spec"),
    [
        ("PodGroup", "scheduling.k8s.io/v1beta1", {"schedulingPolicy": {"gang": {"minCount": 2}}}),
        ("Volcano", "scheduling.volcano.sh/v1beta1", {"minMember": 2}),
        ("Coscheduling", "scheduling.x-k8s.io/v1alpha1", {"minMember": 2, "scheduleTimeoutSeconds": 60}),
    ],
)
def test_a_group_wants_every_pod_of_its_life(asked: str, api_version: str, spec: dict[str, Any]) -> None:
    group = pod_group(spanning(asked, scheduleTimeoutSeconds=60), 1, 4, ALL)
    assert group is not None
    assert (group["apiVersion"], group["kind"]) == (api_version, "PodGroup")
    assert group["metadata"]["name"] == "flux-1-e4"
    assert group["spec"] == spec


@pytest.mark.parametrize("asked", ["PodGroup", "Volcano", "Coscheduling"])
def test_every_pod_of_a_life_names_its_group(asked: str) -> None:
    for pod in pods(spanning(asked), 1, 4, settings=SETTINGS, api=ALL):
        named = {
            "PodGroup": pod["spec"].get("schedulingGroup", {}).get("podGroupName"),
            "Volcano": pod["metadata"]["annotations"].get("scheduling.k8s.io/group-name"),
            "Coscheduling": pod["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group"),
        }
        assert {kind for kind, name in named.items() if name} == {asked}
        assert named[asked] == "flux-1-e4"
        assert pod["spec"].get("schedulerName") == ("volcano" if asked == "Volcano" else None)


def test_a_scheduler_of_the_users_choice_stays() -> None:
    stage = stage_of(gang={"mode": "Volcano"}, podTemplate={"spec": {"schedulerName": "mine"}}, **TWO_PODS)
    assert {pod["spec"]["schedulerName"] for pod in pods(stage, 0, 0, settings=SETTINGS, api=ALL)} == {"mine"}


def test_no_pod_names_a_group_that_is_not_there() -> None:
    for pod in pods(spanning(), 0, 0, settings=SETTINGS, api=NONE):
        assert "schedulingGroup" not in pod["spec"]
