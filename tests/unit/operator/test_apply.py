"""What is done of a plan: what is there already is not done again, and what is somebody else's is left alone."""

from __future__ import annotations

import pytest

from stage_operator.client.kube import Refused
from stage_operator.loop.queue import Retry
from stage_operator.observed.cache import kind_of
from stage_operator.values import Api, Apply, CreateOnce, CreatePod, DeletePod, Plan, Remove
from support.reconcile_bench import KEY, Bench, child, existing_pod


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_pod_that_was_made_is_known_before_its_event(bench: Bench) -> None:
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() == bench.now, "what was made is looked at"
    bench.plan = Plan({})
    bench.turn()
    assert [pod["metadata"]["name"] for pod in bench.seen[-1].pods] == ["s-0-e0-0"]


def test_a_pod_made_before_a_crash_is_taken_for_what_it_is(bench: Bench) -> None:
    bench.kube.store(child("Pod", "s-0-e0-0", spec={}, status={"phase": "Running"}))
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api())
    assert objects is not None
    assert [pod["status"] for pod in objects.pods] == [{"phase": "Running"}]
    assert not objects.refusals


def test_a_strangers_pod_in_the_way_is_told_to_the_plan_and_left_alone(bench: Bench) -> None:
    stranger = child("Pod", "s-0-e0-0", spec={})
    stranger["metadata"]["ownerReferences"] = []
    bench.kube.store(stranger)
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={})),))
    assert bench.turn() == bench.now, "the plan must know"
    with pytest.raises(Retry):
        bench.turn()
    (refusal,) = bench.seen[-1].refusals
    assert (refusal.kind, refusal.name, refusal.reason) == ("Pod", "s-0-e0-0", "AlreadyExists")


def test_a_refused_pod_does_not_keep_the_others_from_being_made(bench: Bench) -> None:
    bench.kube.failures[("create", "Pod")] = [Refused("exceeded quota", code=403, reason="Forbidden")]
    bench.plan = Plan({}, tuple(CreatePod(child("Pod", f"s-{n}-e0-0", spec={})) for n in range(3)))
    bench.turn()
    assert [name for kind, _, name in bench.kube.objects if kind == "Pod"] == ["s-1-e0-0", "s-2-e0-0"]
    bench.plan = Plan({})
    bench.turn()
    assert [refusal.message for refusal in bench.seen[-1].refusals] == ["exceeded quota"]
    bench.turn()
    assert bench.seen[-1].refusals == ()


@pytest.mark.parametrize("mounts", [True, False])
def test_a_pod_whose_model_is_an_image_is_made_only_where_images_are_mounted(
    bench: Bench, mounts: bool
) -> None:
    bench.kube.mounts_images = mounts
    volumes = [{"name": "model", "image": {"reference": "registry.example/model:1"}}]
    bench.plan = Plan({}, (CreatePod(child("Pod", "s-0-e0-0", spec={"volumes": volumes})),))
    bench.turn()
    bench.plan = Plan({})
    bench.turn()
    assert [one.message.partition(":")[0] for one in bench.seen[-1].refusals] == (
        [] if mounts else ["the cluster mounts no images as volumes"]
    )
    assert (("create", "Pod", "s-0-e0-0") in bench.kube.calls) == mounts


def test_what_could_not_be_deleted_is_not_replaced(bench: Bench) -> None:
    pod = existing_pod(bench)
    bench.kube.failures[("delete", "Pod")] = [Refused("no right to", code=403, reason="Forbidden")]
    delete = DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"])
    bench.plan = Plan({}, (delete, CreatePod(child("Pod", "s-0-e1-0", spec={}))))
    bench.turn()
    assert ("create", "Pod", "s-0-e1-0") not in bench.kube.calls


def test_only_the_very_pod_is_deleted(bench: Bench) -> None:
    existing_pod(bench)
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", "another-uid"),))
    bench.turn()
    assert ("Pod", "ns", "s-0-e0-0") in bench.kube.objects


def test_a_pod_that_needs_its_grace_stays_in_sight_until_it_is_gone(bench: Bench) -> None:
    pod = existing_pod(bench)
    uid = pod["metadata"]["uid"]
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", uid, grace_seconds=5),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api())
    assert objects is not None
    assert "deletionTimestamp" in objects.pods[0]["metadata"]
    bench.plan = Plan({}, (DeletePod("s-0-e0-0", uid, force=True),))
    bench.turn()
    objects = bench.cache.objects(KEY, Api())
    assert objects is not None
    assert objects.pods == ()


def test_what_goes_together_goes_at_once_and_the_rest_in_order(bench: Bench) -> None:
    pod = existing_pod(bench)
    bench.plan = Plan(
        {},
        (
            DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"]),
            CreateOnce(child("Secret", "s-keys")),
            CreatePod(child("Pod", "a", spec={})),
            CreatePod(child("Pod", "b", spec={})),
            Apply(child("Service", "s", spec={"ports": []})),
        ),
    )
    bench.turn()
    assert bench.kube.writes() == [
        ("delete", "Pod", "s-0-e0-0"),
        ("create", "Secret", "s-keys"),
        ("create", "Pod", "a"),
        ("create", "Pod", "b"),
        ("apply", "Service", "s"),
    ]


def test_a_child_is_applied_once_and_again_when_it_is_wanted_otherwise(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"ports": [1, 2]})),))
    bench.turn()
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 1
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"ports": [1]})),))
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 2


def test_a_child_that_somebody_changed_is_put_right(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"selector": {"a": "b"}})),))
    bench.turn()
    live = bench.kube.objects[("Service", "ns", "s")]
    bench.cache.put(kind_of("v1", "Service"), bench.kube.store({**live, "spec": {"selector": {"a": "x"}}}))
    bench.turn()
    assert bench.kube.objects[("Service", "ns", "s")]["spec"] == {"selector": {"a": "b"}}
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 2


def test_what_others_add_to_a_child_is_no_reason_to_apply_it(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"selector": {"a": "b"}})),))
    bench.turn()
    live = bench.kube.objects[("Service", "ns", "s")]
    added = {**live, "spec": {**live["spec"], "clusterIP": "10.0.0.1"}}
    bench.cache.put(kind_of("v1", "Service"), bench.kube.store(added))
    bench.turn()
    assert bench.kube.calls.count(("apply", "Service", "s")) == 1


def test_a_strangers_child_is_not_taken_over(bench: Bench) -> None:
    bench.kube.store(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "ns", "name": "s"},
            "spec": {"x": 1},
        }
    )
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={"x": 2})),))
    bench.turn()
    assert bench.kube.objects[("Service", "ns", "s")]["spec"] == {"x": 1}
    with pytest.raises(Retry):
        bench.turn()
    assert bench.seen[-1].refusals[0].reason == "AlreadyExists"


def test_a_secret_is_made_once_and_made_sure_of_when_pods_are_made(bench: Bench) -> None:
    once = CreateOnce(child("Secret", "s-keys"), draw=lambda: {"key": "drawn"})
    bench.plan = Plan({}, (once,))
    bench.turn()
    bench.turn()
    assert bench.kube.calls.count(("create", "Secret", "s-keys")) == 1
    assert bench.kube.objects[("Secret", "ns", "s-keys")]["stringData"] == {"key": "drawn"}
    bench.plan = Plan({}, (once, CreatePod(child("Pod", "s-0-e0-0", spec={}))))
    bench.turn()
    assert bench.kube.calls.count(("create", "Secret", "s-keys")) == 2


def test_a_child_that_is_wanted_no_more_is_removed(bench: Bench) -> None:
    bench.plan = Plan({}, (Apply(child("Service", "s", spec={})),))
    bench.turn()
    bench.plan = Plan({}, (Remove("v1", "Service", "s"),))
    bench.turn()
    assert ("Service", "ns", "s") not in bench.kube.objects
    bench.turn()
