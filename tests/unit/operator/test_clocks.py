"""Whatever clock of a cluster is off, everything is decided when and as it is where all clocks agree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pytest

from support.sim_cluster import API, CONTROLLER, SCHEDULER, SimCluster, stage
from support.sim_operator import SimOperator

Act = Callable[[SimCluster], object]

TWO_PODS: Final = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
NODES: Final = ("node-0", "node-1", "node-2")
LONGEST_STEP_S: Final = 20.0


@dataclass(frozen=True)
class Story:
    """What befalls a stage, and when. `until_s` is its end; what is found odd there is its point."""

    spec: dict[str, Any]
    events: tuple[tuple[float, Act], ...]
    until_s: float
    point: Callable[[SimCluster], bool]
    steps: tuple[Act, ...] = (SimCluster.come_up,)


def _delete(replica: int, ordinal: int = 0, code: int = 0) -> Act:
    """Somebody deletes a pod, which ends within its grace, as its node tells before it is gone."""

    def act(cluster: SimCluster) -> None:
        pod = cluster.of(replica)[ordinal]
        name = pod["metadata"]["name"]
        cluster.delete(name, pod["metadata"]["uid"], None)
        cluster.exit(name, code)

    return act


def _exit(replica: int, code: int, ordinal: int = 0) -> Act:
    return lambda cluster: cluster.exit(cluster.of(replica)[ordinal]["metadata"]["name"], code)


def _edit(**spec: Any) -> Act:
    return lambda cluster: cluster.edit(**spec)


def _off(cluster: SimCluster) -> None:
    cluster.power_off(cluster.of(0)[0]["spec"]["nodeName"])


def _on(cluster: SimCluster) -> None:
    for name in tuple(cluster.off):
        cluster.reach(name)


def _warm_the_old(cluster: SimCluster) -> None:
    if cluster.stage["metadata"]["generation"] == 1:
        cluster.warm()


def _full(cluster: SimCluster) -> None:
    cluster.full = set(cluster.nodes)


def _roomy(cluster: SimCluster) -> None:
    cluster.full = set()


def _replica(cluster: SimCluster, index: int = 0) -> dict[str, Any]:
    return next(one for one in cluster.status["replicaStatuses"] if one["index"] == index)


def _last(cluster: SimCluster) -> dict[str, Any]:
    last: dict[str, Any] = _replica(cluster)["history"]["last"]
    return last


COLD: Final[tuple[Act, ...]] = (SimCluster.reap, SimCluster.schedule, SimCluster.start)
"""Nothing becomes ready by itself."""
NEW: Final = {"device": "cpu", "dtype": "float32"}
STRICT: Final = {"maxRestarts": 2}

STORIES: Final = {
    "people delete pods, more often than a replica may fail": Story(
        {"failurePolicy": STRICT},
        tuple((60.0 * (n + 1), _delete(0)) for n in range(4)),
        360,
        lambda cluster: cluster.status["disruptions"] == 4 and cluster.status["phase"] == "Ready",
    ),
    "one pod of two is deleted, and the other misses it": Story(
        {"failurePolicy": STRICT, **TWO_PODS},
        tuple((60.0 * (n + 1), _delete(0, 1, 70)) for n in range(4)),
        360,
        lambda cluster: cluster.status["disruptions"] == 4 and cluster.status["phase"] == "Ready",
    ),
    "a rank of two ends": Story(
        TWO_PODS,
        ((60, _exit(0, 70, 1)), (100, _exit(0, 137, 1))),
        200,
        lambda cluster: cluster.status["restarts"] == 2 and not cluster.status["disruptions"],
    ),
    "a rollout waits for each new replica to have been ready for long": Story(
        {"replicas": 2, "rollout": {"minReadySeconds": 120}},
        ((200, _edit(engine=NEW)),),
        420,
        lambda cluster: cluster.status["updatedReplicas"] == 2,
    ),
    "new replicas fail, and the rollout halts": Story(
        {"replicas": 2, "failurePolicy": {"resetAfterSeconds": 100}},
        ((30, _edit(engine=NEW)), (40, _exit(1, 70)), (70, _exit(1, 70)), (100, _exit(1, 70))),
        500,
        lambda cluster: cluster.status["updatedReplicas"] == 2,
    ),
    "a start takes too long": Story(
        {"startup": {"timeoutSeconds": 100}, "failurePolicy": STRICT},
        (),
        700,
        lambda cluster: cluster.status["phase"] == "Failed" and _last(cluster)["reason"] == "StartTimeout",
        steps=COLD,
    ),
    "a start takes nearly too long": Story(
        {"startup": {"timeoutSeconds": 100}, "failurePolicy": STRICT},
        ((110, SimCluster.warm),),
        200,
        lambda cluster: cluster.status["restarts"] == 0 and cluster.status["phase"] == "Ready",
        steps=COLD,
    ),
    "it fails again and again, and once after it had been well": Story(
        {"failurePolicy": {"resetAfterSeconds": 200, "maxRestarts": 3}},
        tuple((at_s, _exit(0, 70)) for at_s in (10, 30, 60, 350, 380, 420)),
        600,
        lambda cluster: cluster.status["phase"] == "Failed" and cluster.status["restarts"] == 3,
    ),
    "a node is silent for less than its grace": Story(
        {"replicas": 2},
        ((60, _off), (100, _on)),
        300,
        lambda cluster: cluster.status["restarts"] == 0 and cluster.status["phase"] == "Ready",
    ),
    "a node is lost": Story(
        {"replicas": 2},
        ((60, _off),),
        400,
        lambda cluster: cluster.status["disruptions"] == 1 and cluster.status["phase"] == "Ready",
    ),
    "a node is lost under a replica of two pods, whose other pod ends before that is known": Story(
        {"failurePolicy": {"maxRestarts": 0}, **TWO_PODS},
        ((60, lambda cluster: cluster.off.add("node-0")), (100, lambda cluster: cluster.power_off("node-0"))),
        400,
        lambda cluster: _last(cluster)["reason"] == "NodeLost" and cluster.status["phase"] == "Ready",
    ),
    "there is no room for a replica more": Story(
        {"replicas": 1, "rollout": {"maxSurge": 1, "maxUnavailable": 0}},
        ((60, _full), (70, _edit(engine=NEW)), (200, _roomy)),
        300,
        lambda cluster: cluster.status["updatedReplicas"] == 1 and cluster.status["phase"] == "Ready",
    ),
    "there is no room for a long time": Story(
        {"replicas": 1, "gang": {"scheduleTimeoutSeconds": 100}},
        ((0, _full),),
        300,
        lambda cluster: cluster.condition("Degraded")["reason"] == "Unschedulable",
    ),
    "a rollout makes no progress": Story(
        {"replicas": 1, "rollout": {"maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 150}},
        ((60, _edit(engine=NEW)),),
        300,
        lambda cluster: cluster.condition("Progressing")["reason"] == "ProgressDeadlineExceeded",
        steps=(*COLD, _warm_the_old),
    ),
}


def _seen(cluster: SimCluster) -> Any:
    """All that was decided, without its times."""
    status = cluster.status
    replicas = [
        {name: value for name, value in one.items() if name not in ("startedAt", "readyAt", "history")}
        | {"history": _timeless(one.get("history") or {})}
        for one in status.get("replicaStatuses", ())
    ]
    conditions = [(one["type"], one["status"], one["reason"]) for one in status.get("conditions", ())]
    return (status.get("phase"), replicas, conditions, sorted(cluster.pods))


def _timeless(history: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in history.items() if name not in ("recent", "restartAtS")}
    return {**kept, "counted": len(history.get("recent", ()))}


def _tell(
    story: Story, skew_s: dict[str, float] | None = None, crew: Sequence[tuple[float, float]] = ()
) -> tuple[SimCluster, list[tuple[float, Any]]]:
    """What was decided at each moment.

    `crew`: from when on another operator acts, and how far ahead its clock is. All of them look on from the beginning.
    """
    policy = {"backoff": {"jitterPercent": 0}, **story.spec.get("failurePolicy", {})}
    cluster = SimCluster(stage(**copy.deepcopy({**story.spec, "failurePolicy": policy})), skew_s=skew_s)
    start_s, told, events = cluster.now_s, [], list(story.events)
    operators = [(from_s, SimOperator(cluster, clock_s=clock_s)) for from_s, clock_s in ((0.0, 0.0), *crew)]
    while (at_s := cluster.now_s - start_s) <= story.until_s:
        acting = [operator for from_s, operator in operators if from_s <= at_s][-1]
        while events and events[0][0] <= at_s:
            events.pop(0)[1](cluster)
            _look(operators)
        for _ in range(4):
            made = acting.turn()
            told.append((at_s, _seen(cluster)))
            _look(operators)
            for step in story.steps:
                step(cluster)
            _look(operators)
        wake_s = None if made.wake_at_s is None else made.wake_at_s - acting.clock_s - start_s
        ahead = [due_s for due_s in (wake_s, events[0][0] if events else None) if due_s is not None]
        cluster.now_s = start_s + min([at_s + LONGEST_STEP_S, *(due_s for due_s in ahead if due_s > at_s)])
    return cluster, told


def _look(operators: Sequence[tuple[float, SimOperator]]) -> None:
    for _, operator in operators:
        operator.see_all()


@cache
def _agreed(name: str) -> list[tuple[float, Any]]:
    cluster, told = _tell(STORIES[name])
    assert STORIES[name].point(cluster), cluster.status
    return told


def _whose(skew_s: float) -> dict[str, dict[str, float]]:
    nodes = {node: skew_s * (1 - n) for n, node in enumerate(NODES)}
    return {
        "a node": {"node-0": skew_s},
        "nodes": nodes,
        "API server": {API: skew_s},
        "controllers": {CONTROLLER: skew_s, SCHEDULER: -skew_s},
        "all": {**nodes, API: -skew_s / 2, CONTROLLER: skew_s / 3, SCHEDULER: -skew_s},
    }


@pytest.mark.parametrize("name", STORIES)
def test_a_stage_is_kept_as_if_all_clocks_agreed(name: str) -> None:
    assert _tell(STORIES[name], _whose(-600)["all"])[1] == _agreed(name)


@pytest.mark.sweep
@pytest.mark.parametrize("whose", _whose(0))
@pytest.mark.parametrize("skew_s", [-600, -60, -10, -1, 1, 10, 60, 600])
@pytest.mark.parametrize("name", STORIES)
def test_a_stage_is_kept_as_if_all_clocks_agreed_whoever_has_the_wrong_one(
    name: str, skew_s: float, whose: str
) -> None:
    assert _tell(STORIES[name], _whose(skew_s)[whose])[1] == _agreed(name)


@pytest.mark.parametrize(
    "skew_s", [-600, *(pytest.param(skew_s, marks=pytest.mark.sweep) for skew_s in (-60, -10, 10, 60, 600))]
)
@pytest.mark.parametrize("name", STORIES)
def test_an_operator_with_another_clock_that_looked_on_goes_on_as_the_one_before(
    name: str, skew_s: float
) -> None:
    crew = [(STORIES[name].until_s / 3, skew_s)]
    assert _tell(STORIES[name], crew=crew)[1] == _agreed(name)
