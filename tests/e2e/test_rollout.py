"""From one spec to another, and from one number of replicas to another."""

from __future__ import annotations

import pytest

from stage_api import names
from support.live_client import PROMPT, Client, TrafficMaker, kinds
from support.live_cluster import SEAT, kubectl, needs_cluster, nodes, seat, until
from support.live_stage import READY_S, StageMaker, example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]


def test_a_stage_is_scaled_up_and_to_nothing_and_back(client: Client, make_stage: StageMaker) -> None:
    stage = make_stage("scaled").await_ready()
    (first,) = stage.uids()
    stage.scale(3)
    stage.await_ready("3/3", within_s=2 * READY_S)
    assert first in stage.uids()
    assert len(stage.pods()) == 3
    stage.scale(0)
    until(lambda: not stage.pods(), "the pods to go")
    stage.await_ready("0/0")
    assert client.ask(stage.url, steps=2).status != 200
    stage.scale(1)
    stage.await_ready("1/1")
    assert stage.status().get("restarts", 0) == 0
    client.ask_until_served(stage.url)


def test_a_new_spec_rolls_out_and_no_request_fails(
    client: Client, make_stage: StageMaker, make_traffic: TrafficMaker
) -> None:
    stage = make_stage("rolled", example(replicas=2)).await_ready("2/2")
    before = stage.uids()
    traffic = make_traffic(stage, workers=3)
    traffic.await_more()
    stage.patch({"engine": {"maxNumSeqs": 4}})
    stage.await_ready("2/2", within_s=2 * READY_S)
    traffic.await_more()
    answers = traffic.end()
    assert set(kinds(answers)) == {(200, "")}, kinds(answers)
    assert not set(before) & set(stage.uids())
    assert stage.status()["updatedReplicas"] == 2
    assert client.ask(stage.url).shows(PROMPT)


def test_a_spec_that_fails_halts_the_rollout_and_the_old_one_serves_on(
    client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("halted", example(replicas=2)).await_ready("2/2")
    stage.patch({"engine": {"extensions": {"runner": "no.such.module:Runner"}}})
    until(lambda: stage.condition("Progressing").get("reason") == "RolloutHalted", "the rollout to halt")
    assert stage.condition("Available")["status"] == "True"
    client.ask_until_served(stage.url)
    stage.patch({"engine": {"extensions": None}})
    stage.await_ready("2/2")


def test_the_only_replica_gives_way_where_no_node_has_room_for_one_more(
    client: Client, make_stage: StageMaker
) -> None:
    for node in nodes():
        seat(node, int(node == nodes()[1]))
    room = {"limits": {SEAT: 1}}
    surge = {"maxSurge": 1, "maxUnavailable": 0}
    stage = make_stage("alone", example(rollout=surge, resources=room)).await_ready()
    (before,) = stage.uids()
    stage.patch({"engine": {"maxNumSeqs": 4}})
    until(lambda: len(stage.pods()) == 2, "a pod for which there is no room")
    assert before in stage.uids()
    until(lambda: before not in stage.uids(), "it to give way", within_s=READY_S)
    stage.await_ready()
    assert len(stage.pods()) == 1
    assert stage.status()["updatedReplicas"] == 1
    client.ask_until_served(stage.url)


def test_a_suspended_stage_has_no_pods_and_comes_back(make_stage: StageMaker) -> None:
    stage = make_stage("asleep").await_ready()
    stage.patch({"suspend": True})
    until(lambda: not stage.pods(), "the pods to go")
    until(lambda: stage.condition("Suspended").get("status") == "True", "the condition")
    stage.patch({"suspend": False})
    stage.await_ready()


def test_a_table_tells_how_stages_are(make_stage: StageMaker) -> None:
    stage = make_stage("told").await_ready()
    table = kubectl(f"--namespace={stage.namespace}", "get", names.SHORT_NAME, "told").splitlines()
    assert table[0].split() == ["NAME", "READY", "PHASE", "MODEL", "WORLD", "RESTARTS", "AGE"]
    assert table[1].split()[:6] == ["told", "1/1", "Ready", "told", "1", "0"]
