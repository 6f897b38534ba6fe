"""Whether a cluster's definition of stages knows all that this operator's does."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from stage_api import crdgen, names, schema
from stage_api.stage import DiffusionStage
from stage_operator.client.definition import lacking
from stage_operator.client.kube import KubeError, Missing, Trouble
from stage_operator.observed.definition_watch import INDEX, DefinitionWatch
from stage_operator.write.status import lacks

OURS = schema.structural(DiffusionStage)


def served() -> dict[str, Any]:
    version = copy.deepcopy(crdgen.crd()["spec"]["versions"][0])
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def test_the_definition_in_the_repository_lacks_nothing() -> None:
    assert lacking(OURS, served()) == []


def test_a_later_definition_lacks_nothing() -> None:
    later = served()
    later["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert lacking(OURS, later) == []


def test_a_part_that_an_older_definition_lacks_is_named_once() -> None:
    older = served()
    del older["properties"]["status"]["properties"]["replicaStatuses"]
    del older["properties"]["spec"]["properties"]["engine"]["properties"]["mode"]
    assert lacking(OURS, older) == ["spec.engine.mode", "status.replicaStatuses"]


def test_a_field_within_a_list_counts_too() -> None:
    older = served()
    replica = older["properties"]["status"]["properties"]["replicaStatuses"]["items"]
    del replica["properties"]["history"]
    assert lacking(OURS, older) == ["status.replicaStatuses[].history"]


def test_what_takes_any_field_lacks_none() -> None:
    older = served()
    older["properties"]["spec"] = {"x-kubernetes-preserve-unknown-fields": True}
    assert lacking(OURS, older) == []


def without_history() -> dict[str, Any]:
    older = served()
    del older["properties"]["status"]["properties"]["replicaStatuses"]["items"]["properties"]["history"]
    return older


class World:
    """A definition that somebody may change, as an API server publishes it."""

    def __init__(self) -> None:
        self.schema = served()
        self.mark = 0
        self.fault: KubeError | None = None
        self.read: list[str] = []
        self.whole = 0
        kube: Any = self
        self.watch = DefinitionWatch(kube, on_whole=self._on_whole)

    def _on_whole(self) -> None:
        self.whole += 1

    def change(self, schema: dict[str, Any]) -> None:
        self.schema, self.mark = schema, self.mark + 1

    def look(self) -> str | None:
        asyncio.run(self.watch.look())
        return self.watch.problem

    async def fetch(self, path: str, **_: Any) -> dict[str, Any]:
        self.read.append(path)
        if self.fault is not None:
            raise self.fault
        if path == INDEX:
            url = f"/openapi/v3/apis/{names.API_VERSION}?hash={self.mark}"
            return {"paths": {f"apis/{names.API_VERSION}": {"serverRelativeURL": url}}}
        group, _, version = names.API_VERSION.partition("/")
        kind = {"group": group, "version": version, "kind": names.KIND}
        return {"components": {"schemas": {"a": {**self.schema, "x-kubernetes-group-version-kind": [kind]}}}}


def test_a_definition_that_is_taken_back_while_the_operator_runs_is_noticed_and_its_return_too() -> None:
    world = World()
    assert world.look() is None
    world.change(without_history())
    assert "status.replicaStatuses[].history" in str(world.look())
    assert world.whole == 0
    world.change(served())
    assert world.look() is None
    assert world.whole == 1, "what was put off is due now"


def test_a_definition_that_stays_as_it_is_is_read_once() -> None:
    world = World()
    for _ in range(4):
        world.look()
    assert [path for path in world.read if path != INDEX] == [f"/openapi/v3/apis/{names.API_VERSION}"]
    world.watch.look_soon()
    world.look()
    assert len([path for path in world.read if path != INDEX]) == 2


@pytest.mark.parametrize("older", [False, True])
def test_an_api_server_that_is_away_changes_nothing_about_what_is_known(older: bool) -> None:
    world = World()
    world.change(without_history() if older else served())
    known = world.look()
    world.fault = Trouble("away")
    assert world.look() == known
    assert (known is not None) == older


def test_a_definition_that_is_deleted_is_a_problem_until_it_is_back() -> None:
    world = World()
    world.look()
    world.fault = Missing("gone", code=404)
    assert world.look() is not None
    world.fault = None
    assert world.look() is None
    assert world.whole == 1


@pytest.mark.parametrize(
    ("stored", "missing"),
    [
        ({"a": 1, "b": [{"c": 1}, {"c": 2}]}, False),
        ({"a": 2, "b": [{"c": 1, "more": 1}, {"c": 2}], "more": 1}, False),
        ({"b": [{"c": 1}, {"c": 2}]}, True),
        ({"a": 1, "b": [{"c": 1}, {}]}, True),
        ({"a": 1}, True),
        ({}, True),
    ],
)
def test_a_status_that_comes_back_without_a_part_of_what_was_written_is_noticed(
    stored: dict[str, Any], missing: bool
) -> None:
    assert lacks(stored, {"a": 1, "b": [{"c": 1}, {"c": 2}]}) is missing
