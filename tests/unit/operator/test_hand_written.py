"""Statuses and labels that somebody changed by hand, or another program wrote: plans go on from what there is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage_api import names
from stage_api.status import DiffusionStageStatus
from stage_operator.decide.remembered_status import read
from stage_operator.values import CreatePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

Raw = dict[str, Any]

_TURNS = 12
_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, names.MAX_EPOCH, 2 * names.MAX_EPOCH, 2**63 - 1, 10**30, 1e300]),
    st.sampled_from(["", "0/²", "0/" + "9" * 60, "é" * 63, "a" * 253, "Held", "Ready", "BackOff", "NewWord"]),
    st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2099-01-01T00:00:00Z"]),
    st.sampled_from([[], {}, [None], [[]], {"a": 1}]),
)
_LABELS = (names.LABEL_REPLICA, names.LABEL_EPOCH, names.LABEL_ORDINAL, names.LABEL_REVISION)


def _up(replicas: int = 2, **spec: Any) -> tuple[SimCluster, SimOperator]:
    world = {"parallelism": {"data": 2}, "topology": {"ranksPerPod": 1}}
    cluster = SimCluster(stage(replicas=replicas, **world, **spec))
    operator = SimOperator(cluster)
    _go_on(cluster, operator, turns=4)
    assert cluster.status["phase"] == "Ready"
    return cluster, operator


def _go_on(cluster: SimCluster, operator: SimOperator, turns: int = _TURNS) -> None:
    for turn in range(turns):
        operator.see_all()
        operator.turn()
        cluster.come_up()
        cluster.now_s += 1 if turn < turns // 2 else 400
    operator.see_all()
    operator.turn()


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(below for key, part in parts for below in _paths(part, (*path, key)))]


def _write(value: Any, path: tuple[str | int, ...], new: Any) -> None:
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = copy.deepcopy(new)


@given(data=st.data(), code=st.sampled_from([None, 1, 70]))
@settings(max_examples=60, deadline=None)
def test_whatever_somebody_writes_into_a_status_the_stage_comes_up_again(data: Any, code: int | None) -> None:
    cluster, operator = _up()
    if code is not None:
        cluster.exit("pics-1-e0-1", code, "why")
        operator.see_all()
        operator.turn()
    status = cluster.stage["status"]
    path = data.draw(st.sampled_from([path for path in _paths(status) if path]))
    _write(status, path, data.draw(_JUNK))
    _go_on(cluster, operator)
    held = [one for one in cluster.status["replicaStatuses"] if one["phase"] == "Held"]
    assert cluster.status["ready"] == "2/2" or held
    assert len(cluster.pods) == 4 or held
    at_rest = copy.deepcopy(cluster.status)
    operator.turn()
    assert cluster.status == at_rest


@pytest.mark.parametrize("label", _LABELS)
@pytest.mark.parametrize("value", ["5", "x", "9" * 20, "0_1", ""])
def test_a_pod_is_the_one_that_its_name_says_whatever_its_labels_do(label: str, value: str) -> None:
    cluster, operator = _up()
    cluster.pods["pics-1-e0-1"]["metadata"]["labels"][label] = value
    before = set(cluster.pods)
    _go_on(cluster, operator)
    assert set(cluster.pods) == before
    assert cluster.status["ready"] == "2/2"


def test_a_wait_that_no_back_off_gives_is_from_a_wrong_clock_and_is_not_waited_for() -> None:
    cluster, operator = _up(replicas=1)
    year_s = 365 * 24 * 3600
    cluster.now_s += year_s
    for name in ("pics-0-e0-0", "pics-0-e0-1"):
        cluster.exit(name, 1)
    operator.see_all()
    operator.turn()
    cluster.now_s -= year_s
    _go_on(cluster, operator)
    assert cluster.status["ready"] == "1/1"


def test_an_epoch_that_is_judged_before_it_ends_is_judged_all_the_same() -> None:
    cluster, operator = _up(replicas=1)
    cluster.stage["status"]["replicaStatuses"][0]["history"] = {"epoch": 10**6}
    cluster.exit("pics-0-e0-0", 64, "wrong")
    operator.see_all()
    operator.turn()
    assert cluster.status["phase"] == "Failed"


def test_an_end_that_a_newer_program_judged_is_not_counted_again() -> None:
    cluster, operator = _up(replicas=1)
    cluster.exit("pics-0-e0-0", 70)
    operator.see_all()
    operator.turn()
    cluster.stage["status"]["replicaStatuses"][0]["phase"] = "Recovering"
    _go_on(cluster, operator)
    assert (cluster.status["ready"], cluster.status["restarts"]) == ("1/1", 1)


def test_a_rollout_of_the_most_replicas_may_surge() -> None:
    cluster = SimCluster(stage(replicas=1000, rollout={"maxSurge": "100%", "maxUnavailable": 0}), nodes=50)
    cluster.quota = 10_000
    operator = SimOperator(cluster)
    _go_on(cluster, operator, turns=2)
    cluster.annotate("again")
    operator.see_all()
    operator.turn()
    assert len(read(cluster.stage).replica_statuses) == 2000


def test_more_replicas_than_there_may_be_are_not_all_forgotten() -> None:
    many: Raw = {"restarts": 3, "replicaStatuses": [{"index": i, "epoch": 1} for i in range(2000)]}
    many["replicaStatuses"] += many["replicaStatuses"][:5]
    found = read({"status": many})
    assert (len(found.replica_statuses), found.restarts) == (2000, 3)


@given(
    st.integers(0, names.MAX_REPLICA_STATUSES - 1),
    st.integers(0, 2 * names.MAX_EPOCH),
    st.integers(0, names.MAX_ORDINAL),
)
def test_the_name_of_a_pod_fits_and_says_where_it_belongs(replica: int, epoch: int, ordinal: int) -> None:
    stage_name = "s" * names.MAX_NAME
    name = names.pod_name(stage_name, replica, epoch, ordinal)
    assert len(name) <= names.MAX_LABEL
    assert names.pod_place(stage_name, name) == (replica, epoch, ordinal)


@pytest.mark.parametrize(
    "name", ["a-0-e0", "a-00-e0-0", "a-0-0-e0-0", "b-0-e0-0", "a-0-e0-0\n", "a-2000-e0-0", "a-²-e0-0"]
)
def test_other_names_are_no_pods_of_a_stage(name: str) -> None:
    assert names.pod_place("a", name) is None


def test_no_pod_is_made_under_a_name_that_is_too_long() -> None:
    cluster, operator = _up()
    cluster.stage["status"] = DiffusionStageStatus(first_epoch=2 * names.MAX_EPOCH).to_json()
    cluster.edit(replicas=3)
    operator.turn()
    made = [action.manifest["metadata"]["name"] for action in cluster.log if isinstance(action, CreatePod)]
    assert made
    assert max(map(len, made)) <= names.MAX_LABEL
