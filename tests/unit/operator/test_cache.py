"""What the cache holds, whatever order events, lists and answers come in."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stage_api import names
from stage_operator.observed.cache import NODE, POD, STAGE, Cache, kind_of
from stage_operator.values import Api, ChildKey, Gone, StageKey

KEY = StageKey("ns", "s")
API = Api()


def stage(version: int, **fields: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "s", "uid": "stage-uid", "resourceVersion": str(version)}
    return {"kind": names.KIND, "metadata": metadata, "spec": {}, **fields}


def pod(
    name: str, version: int, *, uid: str = "", node: str | None = None, phase: str = "Pending"
) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {names.LABEL_STAGE: "s"},
        "managedFields": [{"manager": "somebody"}],
    }
    spec: dict[str, Any] = {"containers": [{"name": "stage", "image": "large"}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def node(name: str, version: int, *, ready: str = "True", beat: str = "1") -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": beat}]
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}


def pods_of(cache: Cache) -> list[str]:
    objects = cache.objects(KEY, API)
    assert objects is not None
    return [each["metadata"]["name"] for each in objects.pods]


def test_a_pods_event_is_news_about_its_stage() -> None:
    cache = Cache()
    assert cache.put(STAGE, stage(1)) == {KEY}
    assert cache.put(POD, pod("b", 2)) == {KEY}
    assert cache.put(POD, pod("a", 3)) == {KEY}
    assert pods_of(cache) == ["a", "b"]


def test_what_is_older_or_the_same_is_no_news() -> None:
    cache = Cache()
    cache.put(POD, pod("a", 5, phase="Running"))
    assert cache.put(POD, pod("a", 5, phase="Running")) == frozenset()
    assert cache.put(POD, pod("a", 4, phase="Pending")) == frozenset()
    assert cache.put(POD, pod("a", 6, phase="Running")) == frozenset(), "only its version is another"
    assert cache.put(POD, pod("a", 7, phase="Failed")) == {KEY}


def test_only_what_plans_read_of_a_pod_is_kept() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2, node="n"))
    cache.put(NODE, node("n", 3))
    objects = cache.objects(KEY, API)
    assert objects is not None
    (kept,) = objects.pods
    assert kept["spec"] == {"nodeName": "n"}
    assert "managedFields" not in kept["metadata"]
    assert kept["kind"] == "Pod"


def test_a_pod_that_was_deleted_does_not_come_back_by_a_late_event() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2))
    assert cache.drop(POD, pod("a", 2)) == {KEY}
    assert cache.put(POD, pod("a", 3)) == frozenset()
    assert pods_of(cache) == []


def test_the_deletion_of_one_pod_does_not_take_another_of_its_name() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2, uid="first"))
    cache.put(POD, pod("a", 9, uid="second"))
    assert cache.drop(POD, pod("a", 8, uid="first")) == frozenset()
    assert pods_of(cache) == ["a"]


def test_a_list_drops_ghosts_and_keeps_what_is_younger_than_it() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    for name, version in (("ghost", 3), ("kept", 4), ("younger", 11)):
        cache.put(POD, pod(name, version))
    news, ghosts = cache.replace(POD, None, [pod("kept", 4), pod("missed", 7)], 10)
    assert news == {KEY}
    assert ghosts == 1
    assert pods_of(cache) == ["kept", "missed", "younger"]


def test_a_list_that_was_begun_before_a_deletion_does_not_bring_the_pod_back() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2))
    cache.drop(POD, pod("a", 2))
    cache.replace(POD, None, [pod("a", 2)], 5)
    assert pods_of(cache) == []


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2))
    assert cache.replace(POD, "elsewhere", [], 10) == (frozenset(), 0)
    assert pods_of(cache) == ["a"]


def test_a_node_is_news_about_the_stages_on_it_but_not_by_its_heartbeat() -> None:
    cache = Cache()
    cache.put(POD, pod("a", 1, node="n"))
    assert cache.put(NODE, node("n", 2)) == {KEY}
    assert cache.put(NODE, node("n", 3, beat="2")) == frozenset()
    assert cache.put(NODE, node("n", 4, ready="Unknown")) == {KEY}
    assert cache.put(NODE, node("other", 5)) == frozenset()
    assert cache.drop(NODE, node("n", 4)) == {KEY}


def test_a_plan_sees_the_nodes_that_its_pods_are_on() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    cache.put(POD, pod("a", 2, node="n"))
    cache.put(NODE, node("n", 3))
    cache.put(NODE, node("other", 4))
    objects = cache.objects(KEY, API)
    assert objects is not None
    assert set(objects.nodes) == {"n"}


def test_children_are_found_by_their_label() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**pod("s", 2)["metadata"], "name": "s"},
        "spec": {},
    }
    assert cache.put(kind_of("v1", "Service"), service) == {KEY}
    objects = cache.objects(KEY, API)
    assert objects is not None
    assert set(objects.children) == {ChildKey("Service", "s")}
    assert cache.child({"apiVersion": "v1", "kind": "Service", "metadata": service["metadata"]}) is not None


def test_podgroups_of_two_makers_are_two_kinds() -> None:
    assert kind_of("scheduling.k8s.io/v1beta1", "PodGroup") == kind_of("scheduling.k8s.io/v1", "PodGroup")
    assert kind_of("scheduling.k8s.io/v1", "PodGroup") != kind_of("scheduling.volcano.sh/v1beta1", "PodGroup")


def test_a_stage_without_a_spec_or_with_a_strange_status_is_kept_as_it_is() -> None:
    cache = Cache()
    bad = stage(1, spec="none", status=["odd"])
    assert cache.put(STAGE, bad) == {KEY}
    objects = cache.objects(KEY, API)
    assert objects is not None
    assert objects.stage["spec"] == "none"


@given(st.lists(st.sampled_from(["create", "change", "delete"]), max_size=25), st.randoms())
def test_after_a_list_the_cache_is_what_the_server_has_however_events_were_lost_or_shuffled(
    steps: list[str], chance: random.Random
) -> None:
    truth: dict[str, dict[str, Any]] = {}
    events: list[tuple[str, dict[str, Any]]] = []
    version = 1
    for step in steps:
        version += 1
        if step == "create" or not truth:
            name = chance.choice("abc")
            if name not in truth:
                truth[name] = pod(name, version, uid=f"u{version}")
                events.append(("ADDED", truth[name]))
        elif step == "change":
            name = chance.choice(sorted(truth))
            old = truth[name]
            truth[name] = pod(name, version, uid=old["metadata"]["uid"], phase=f"p{version}")
            events.append(("MODIFIED", truth[name]))
        else:
            name = chance.choice(sorted(truth))
            old = truth.pop(name)
            events.append(("DELETED", pod(name, version, uid=old["metadata"]["uid"])))
    cache = Cache()
    cache.put(STAGE, stage(1))
    chance.shuffle(events)
    for type_, obj in events:
        if chance.random() < 0.7:
            _ = cache.drop(POD, obj) if type_ == "DELETED" else cache.put(POD, obj)
    cache.replace(POD, None, list(truth.values()), version)
    assert pods_of(cache) == sorted(truth)
    objects = cache.objects(KEY, API)
    assert objects is not None
    assert [p["status"] for p in objects.pods] == [truth[name]["status"] for name in sorted(truth)]


def test_of_each_replica_the_latest_pods_that_went_are_remembered() -> None:
    cache = Cache()
    cache.put(STAGE, stage(1))
    for version, (epoch, ordinal) in enumerate(((0, 0), (2, 0), (2, 1), (1, 0)), 2):
        went = pod(f"s-3-e{epoch}-{ordinal}", version)
        place = {names.LABEL_REPLICA: "3", names.LABEL_EPOCH: str(epoch), names.LABEL_ORDINAL: str(ordinal)}
        went["metadata"]["labels"] |= {**place, names.LABEL_REVISION: "r"}
        went["metadata"]["ownerReferences"] = [{"uid": "stage-uid", "name": KEY.name, "controller": True}]
        cache.put(POD, went)
        cache.drop(POD, went)
    found = cache.objects(KEY, API)
    assert found is not None
    assert found.gone == {3: Gone(2, frozenset({0, 1}), "r")}
