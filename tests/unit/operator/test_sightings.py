"""Since when things are so: as this operator saw it, whatever is written in the objects."""

from __future__ import annotations

from typing import Any

import pytest

from stage_operator.decide import moments
from stage_operator.decide.moments import SKEW_S, since
from stage_operator.observed.cache import NODE, POD, STAGE, Cache
from stage_operator.observed.own_clock import OwnClock
from stage_operator.observed.sightings import Sightings
from stage_operator.values import Api, Seen, StageKey


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def pod(ready_at: str | None = None, **more: Any) -> dict[str, Any]:
    ready = {
        "type": "Ready",
        "status": "False" if ready_at is None else "True",
        "lastTransitionTime": ready_at,
    }
    return {"metadata": {"name": "p", "uid": "u", **more}, "spec": {}, "status": {"conditions": [ready]}}


def sightings() -> tuple[Sightings, Clock]:
    clock = Clock()
    return Sightings(moments.of_pod, clock), clock


def test_what_comes_true_while_it_looks_is_as_old_as_its_first_sight() -> None:
    seen, clock = sightings()
    seen.note(pod())
    clock.now_s += 5
    seen.note(pod("2001-01-01T00:00:00Z"))
    clock.now_s += 5
    seen.note(pod("2001-01-01T00:00:00Z"))
    assert seen.of(pod())[moments.READY] == Seen(1005.0, "2001-01-01T00:00:00Z")


def test_what_was_so_before_it_looked_was_not_witnessed_unless_the_object_itself_is_new() -> None:
    seen, _ = sightings()
    seen.note(pod("a"))
    assert not seen.of(pod())[moments.READY].witnessed
    seen.note(pod("a", deletionTimestamp="x"))
    assert seen.of(pod())[moments.ASKED].witnessed, "it was known without"
    seen.forget(pod())
    seen.caught_up()
    seen.note(pod("a"))
    assert seen.of(pod())[moments.READY].witnessed


def test_a_break_that_nobody_saw_is_known_by_the_time_that_is_written() -> None:
    seen, clock = sightings()
    seen.note(pod("a"))
    clock.now_s += 9
    seen.note(pod("b"))
    assert seen.of(pod())[moments.READY].since_s == 1009.0


def test_how_long_a_pod_had_been_ready_is_known_after_it_ceased_to_be() -> None:
    seen, clock = sightings()
    for at in ("a", None, None):
        clock.now_s += 7
        seen.note(pod(at))
    assert seen.of(pod())[moments.READY] == Seen(1007.0, "a", witnessed=False, until_s=1014.0)
    seen.note(pod("a"))
    assert seen.of(pod())[moments.READY].since_s == 1021.0


def test_nothing_is_kept_of_what_is_gone() -> None:
    seen, _ = sightings()
    seen.note(pod("a"))
    seen.forget(pod())
    assert seen.of(pod()) == {}


@pytest.mark.parametrize("skew_s", [-600, -10, 0, 10, 600])
def test_a_written_time_is_believed_only_as_far_as_clocks_may_differ(skew_s: float) -> None:
    true_s, looked_s = 1000.0, 5000.0
    assert since(Seen(true_s), true_s + skew_s) == true_s
    late = since(Seen(looked_s, witnessed=False), true_s + skew_s)
    assert late is not None
    assert true_s <= late <= true_s + skew_s + SKEW_S, "never older than it can be"
    assert since(Seen(1001.0, witnessed=False), true_s + skew_s) == 1001.0
    assert since(Seen(looked_s, witnessed=False), None) == looked_s


def test_a_cache_notes_what_it_is_told_of_stages_pods_and_nodes() -> None:
    clock = Clock()
    cache = Cache(clock)
    meta = {"namespace": "ns", "uid": "s", "name": "s", "resourceVersion": "1"}
    cache.put(STAGE, {"metadata": meta, "status": {"replicaStatuses": [{"index": 0, "epoch": 3}]}})
    cache.caught_up()
    clock.now_s += 1
    labels = {"omnistage.io/stage": "s"}
    one = pod("a", namespace="ns", labels=labels, resourceVersion="2")
    cache.put(POD, {**one, "spec": {"nodeName": "n"}})
    clock.now_s += 1
    down = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    cache.put(NODE, {"metadata": {"name": "n", "uid": "n", "resourceVersion": "3"}, "status": down})
    objects = cache.objects(StageKey("ns", "s"), Api())
    assert objects is not None
    assert objects.seen["s"][moments.begun(0)] == Seen(1000.0, "3", witnessed=False)
    assert objects.seen["u"][moments.READY] == Seen(1001.0, "a")
    assert objects.seen["n"][moments.NOT_READY] == Seen(1002.0)


def test_its_clock_takes_no_step_when_the_machine_s_is_set() -> None:
    wall, steady = Clock(), Clock()
    own = OwnClock(wall, steady)
    wall.now_s -= 7200
    steady.now_s += 30
    assert own() == 1030.0


@pytest.mark.parametrize(
    "status", [None, 7, [], {"replicaStatuses": 3, "conditions": [1, {}]}, {"replicaStatuses": [{}]}]
)
def test_whatever_somebody_wrote_into_a_status_says_nothing(status: Any) -> None:
    assert moments.of_stage({"metadata": {}, "status": status}) == {}
