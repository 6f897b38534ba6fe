"""Whether a cluster's definition of stages knows all that this operator's does."""

from __future__ import annotations

import copy
from typing import Any

from stage_api import crdgen, schema
from stage_api.stage import DiffusionStage
from stage_operator.client.definition import lacking

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
