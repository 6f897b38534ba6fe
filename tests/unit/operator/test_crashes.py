"""The operator's process ends after each of its steps in turn, and another one begins with what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stage_api import names
from stage_operator.values import CreatePod, DeletePod, Plan, Remove
from support.sim_cluster import SimCluster, stage
from support.sim_operator import Crash, SimOperator

TWO_PODS = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
MOST_STEPS = 200
Event = Callable[[SimCluster], None]


def _world() -> SimCluster:
    """Two replicas of two pods that are ready."""
    cluster = SimCluster(stage(replicas=2, **TWO_PODS))
    SimOperator(cluster).settle()
    cluster.on_create.append(lambda manifest: _is_alone(cluster, manifest))
    return cluster


def _is_alone(cluster: SimCluster, manifest: dict[str, Any]) -> None:
    """No life begins beside another one of its replica."""
    labels = manifest["metadata"]["labels"]
    for pod in cluster.of(int(labels[names.LABEL_REPLICA])):
        epoch = pod["metadata"]["labels"][names.LABEL_EPOCH]
        assert epoch == labels[names.LABEL_EPOCH], f"{pod['metadata']['name']} is still there"


def _steps(made: Plan) -> int:
    return len(made.actions) + 1 + made.status_first


def _is_at_rest(cluster: SimCluster) -> bool:
    made = SimOperator(cluster).decide()
    acts = any(isinstance(action, CreatePod | DeletePod | Remove) for action in made.actions)
    return made.status == cluster.status and made.wake_at_s is None and not acts


def _go_through(cluster: SimCluster, *cuts: int) -> bool:
    """Turn after turn until all is at rest, each operator ending after so many steps. Whether all of them ended."""
    left = list(cuts)
    operator = SimOperator(cluster)
    for _ in range(MOST_STEPS):
        operator.see_all()
        if not left:
            operator.settle()
            return True
        steps = _steps(operator.decide())
        try:
            made = operator.turn(crash_after=left[0])
        except Crash:
            left.pop(0)
            operator = SimOperator(cluster)
        else:
            left[0] -= steps
            if made.wake_at_s is not None and made.wake_at_s < cluster.now_s + 700:
                cluster.now_s = max(cluster.now_s + 1, made.wake_at_s)
        cluster.come_up()
        if _is_at_rest(cluster):
            return not left
    raise AssertionError("it never comes to rest")


def _rank_ends(cluster: SimCluster) -> None:
    cluster.exit("pics-0-e0-1", 70, "rank 1 died")


def _both_end(cluster: SimCluster) -> None:
    cluster.exit("pics-0-e0-1", 70)
    cluster.exit("pics-1-e0-0", 71)


def _pod_is_taken(cluster: SimCluster) -> None:
    cluster.delete("pics-1-e0-1", cluster.pods["pics-1-e0-1"]["metadata"]["uid"], 0, force=True)


def _spec_changes(cluster: SimCluster) -> None:
    cluster.edit(engine={"device": "cpu", "dtype": "float32"})


@pytest.mark.parametrize(
    ("event", "more_cuts", "counts", "epochs"),
    [
        (_rank_ends, (), (1, 0), (1, 0)),
        (_rank_ends, (0,), (1, 0), (1, 0)),
        (_rank_ends, (3, 1), (1, 0), (1, 0)),
        (_both_end, (), (2, 0), (1, 1)),
        (_pod_is_taken, (3,), (1, 1), (0, 1)),
        (_spec_changes, (), (0, 0), (1, 1)),
    ],
)
def test_wherever_operators_end_counts_are_exact_and_no_two_lives_meet(
    event: Event, more_cuts: tuple[int, ...], counts: tuple[int, int], epochs: tuple[int, int]
) -> None:
    for cut in range(MOST_STEPS):
        cluster = _world()
        event(cluster)
        all_ended = _go_through(cluster, cut, *more_cuts)
        status = cluster.status
        assert (status["ready"], status["phase"]) == ("2/2", "Ready"), cut
        assert (status["restarts"], status.get("disruptions") or 0) == counts, cut
        assert sorted(cluster.pods) == [
            names.pod_name("pics", replica, epoch, ordinal)
            for replica, epoch in enumerate(epochs)
            for ordinal in range(2)
        ], cut
        if not all_ended:
            assert cut > 3, "there was something to cut off"
            return
    raise AssertionError("there is no end of steps")
