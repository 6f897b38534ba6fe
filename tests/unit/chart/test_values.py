"""What can be set in the chart: every value is explained and typed, and a slip is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

import chart_values
from stage_api import names
from stage_operator import settings
from support.helm import CHART, needs_helm, one, render, template

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
FREE = {"global"}  # Helm's own, for charts that contain this one


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the schema whose keys are listed."""
    if "properties" in schema:
        yield path, schema
        for name, child in schema["properties"].items():
            yield from objects(child, f"{path}.{name}")
    if "items" in schema:
        yield from objects(schema["items"], f"{path}[]")


def keys(schema: dict[str, Any], told: set[str], prefix: str = "") -> set[str]:
    """The path of every value; one that is told of as a whole counts as a whole."""
    found = set()
    for name, child in schema["properties"].items():
        path = f"{prefix}{name}"
        parts = path not in told and "properties" in child
        found |= keys(child, told, f"{path}.") if parts else {path}
    return found - FREE


def refused(change: dict[str, Any]) -> bool:
    values = copy.deepcopy(VALUES)
    for path, value in change.items():
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place[parent]
        place[last] = value
    return any(jsonschema.Draft7Validator(SCHEMA).iter_errors(values))


def test_the_values_that_the_chart_comes_with_are_good() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert not refused({})


def test_schema_and_values_have_the_same_keys() -> None:
    rows = {row.path for row in chart_values.values((CHART / "values.yaml").read_text(encoding="utf-8"))}
    assert keys(SCHEMA, rows) == rows


def test_every_object_of_the_schema_refuses_keys_that_it_does_not_list() -> None:
    assert [path for path, schema in objects(SCHEMA) if schema["additionalProperties"] is not False] == []


@pytest.mark.parametrize(
    "change",
    [
        {"replica": 3},
        {"replicas": "2"},
        {"replicas": -1},
        {"image.pullPolicy": "Sometimes"},
        {"image.digest": "latest"},
        {"image.tag": "1.0 beta"},
        {"image.repository": ""},
        {"registry": "https://registry.example"},
        {"worker.defaultImage": " "},
        {"watch.namespaces": ["Team_A"]},
        {"watch.namespaces": ["a", "a"]},
        {"watch.namespace": ["a"]},
        {"client.qps": 0},
        {"logLevel": "chatty"},
        {"metrics.port": 80},
        {"metrics.serviceMonitor.enable": True},
        {"metrics.podMonitor.interval": "often"},
        {"resources": {"request": {}}},
        {"extraEnv": [{"value": "x"}]},
        {"stages": [{"name": "a"}]},
        {"stages": [{"name": "Shapes", "spec": {}}]},
        {"stages": [{"name": "a" * (names.MAX_NAME + 1), "spec": {}}]},
    ],
    ids=json.dumps,
)
def test_a_slip_is_refused(change: dict[str, Any]) -> None:
    assert refused(change)


@needs_helm
@pytest.mark.parametrize(
    "path",
    ["registry", "image", "image.repository", "lease.renewSeconds", "workers", "metrics.port", "pdb.enabled"],
)
def test_a_value_that_is_taken_away_is_missed_by_its_name(path: str) -> None:
    value: Any = None
    for part in reversed(path.split(".")):
        value = {part: value}
    done = template(value)
    assert done.returncode != 0
    assert f"missing property '{path.rpartition('.')[2]}'" in done.stderr


NEVER_EMPTY = {"image"}
GROUPS = [
    *(name for name, value in VALUES.items() if isinstance(value, dict) and name not in NEVER_EMPTY),
    *(f"metrics.{name}" for name, value in VALUES["metrics"].items() if isinstance(value, dict)),
    "watch.namespaces",
]


@needs_helm
@pytest.mark.parametrize("path", GROUPS)
def test_a_map_or_a_list_that_is_null_is_an_empty_one(path: str) -> None:
    value: Any = None
    for part in reversed(path.split(".")):
        value = {part: value}
    arguments = one(render(value), "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    found = settings.load(arguments, env={})
    plain = settings.load([f"--worker-image={found.plan.worker_image}"], env={})
    assert (found.lease.lease_s, found.qps, found.port) == (plain.lease.lease_s, plain.qps, plain.port)


@needs_helm
@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("pdb", {"PodDisruptionBudget"}),
        ("networkPolicy", {"NetworkPolicy"}),
        ("crds", {"CustomResourceDefinition"}),
        ("serviceAccount", {"ServiceAccount"}),
        ("rbac", {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}),
        ("metrics", set()),
    ],
)
def test_what_has_no_switch_left_is_off_and_nothing_else_changes(path: str, kinds: set[str]) -> None:
    before, after = ({each["kind"] for each in render(values)} for values in ({}, {path: None}))
    assert before - after == kinds


@needs_helm
@pytest.mark.parametrize("lease", [{"renewSeconds": 15}, {"retrySeconds": 10}, {"durationSeconds": 3}])
def test_a_leader_that_would_stop_too_late_is_refused(lease: dict[str, Any]) -> None:
    assert "lease: retrySeconds must be less than" in template({"lease": lease}).stderr


@needs_helm
def test_helm_says_which_value_was_a_slip() -> None:
    done = template({"metrics": {"serviceMonitor": {"enable": True}}})
    assert done.returncode != 0
    assert "enable" in done.stderr


def test_the_table_in_the_readme_is_what_the_values_say() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    rows = chart_values.values((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert chart_values.updated(readme, rows) == readme, "run: make generate"


def test_a_value_that_nothing_is_said_about_is_named() -> None:
    with pytest.raises(SystemExit, match=r"nothing about a\.c"):
        chart_values.values("a:\n  # Told.\n  b: 1\n  c: 2\n")
