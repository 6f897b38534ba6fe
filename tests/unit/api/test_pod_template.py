"""What a user's pod template may hold, and what it is refused for."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage


def parse(template: Any) -> dict[str, Any]:
    stage = parse_stage(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "flux"},
            "spec": {"model": {"source": {"embedded": "shapes"}}, "podTemplate": template},
        }
    )
    return stage.spec.pod_template


def faults(template: Any) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse(template)
    return [str(fault).removeprefix("spec.podTemplate.") for fault in raised.value.faults]


def in_container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": names.CONTAINER, **fields}]}}


def test_a_template_may_say_what_nobody_else_says() -> None:
    template = {
        "metadata": {"labels": {"team": "art"}, "annotations": {"sidecar.example/inject": "true"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "securityContext": {"fsGroup": 1000},
            "serviceAccountName": "reader",
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {
                    "name": names.CONTAINER,
                    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                },
                {"name": "proxy", "image": "proxy:1", "command": ["proxy"]},
            ],
            "initContainers": [{"name": "prepare", "image": "prepare:1"}],
        },
    }
    assert parse(template) == template


def test_nothing_at_all_is_a_template() -> None:
    parse({"spec": None})
    assert parse({"spec": {}, "metadata": {}}) == {"spec": {}, "metadata": {}}


def test_a_part_that_no_template_has_is_refused() -> None:
    assert faults({"speck": {}}) == ["speck: expected one of the fields metadata, spec, got an unknown field"]


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("restartPolicy", "Always", "nothing, since the operator sets it"),
        ("hostname", "me", "nothing, since the operator sets it"),
        ("subdomain", "us", "nothing, since the operator sets it"),
        ("terminationGracePeriodSeconds", 5, "spec.drain"),
        ("schedulingGroup", {}, "spec.gang"),
        ("activeDeadlineSeconds", 60, "nothing, since a stage has no end of its own"),
    ],
)
def test_a_field_of_the_pod_that_is_the_operators_is_refused_with_the_place_to_say_it(
    field: str, value: Any, instead: str
) -> None:
    (fault,) = faults({"spec": {field: value}})
    assert fault.startswith(f"spec.{field}: expected {instead}, got")


@pytest.mark.parametrize(
    ("field", "instead"),
    [
        ("image", "spec.engine.image"),
        ("imagePullPolicy", "spec.engine.imagePullPolicy"),
        ("resources", "spec.resources"),
        ("startupProbe", "spec.startup"),
        ("command", "nothing, since the operator sets it"),
        ("livenessProbe", "nothing, since the operator sets it"),
        ("terminationMessagePath", "nothing, since the operator sets it"),
    ],
)
def test_a_field_of_the_stages_container_that_is_the_operators_is_refused(field: str, instead: str) -> None:
    (fault,) = faults(in_container(**{field: "x"}))
    assert fault == f'spec.containers[0].{field}: expected {instead}, got "x"'


def test_another_container_may_say_them() -> None:
    parse({"spec": {"containers": [{"name": "proxy", "image": "proxy:1", "livenessProbe": {}}]}})


def test_how_much_is_logged_is_the_user_s_to_say() -> None:
    assert parse(in_container(env=[{"name": names.ENV_LOG_LEVEL, "value": "DEBUG"}]))


@pytest.mark.parametrize("name", ["OMNISTAGE_EPOCH", "OMNISTAGE_LATER", "MASTER_ADDR", "RANK", "WORLD_SIZE"])
def test_a_variable_that_is_the_operators_is_refused(name: str) -> None:
    (fault,) = faults(in_container(env=[{"name": "A", "value": "1"}, {"name": name, "value": "1"}]))
    assert fault.startswith("spec.containers[0].env[1].name: expected a name that isn't the operator's")


@pytest.mark.parametrize("path", ["/tmp", "/tmp/", "/", "/etc", "/models/stage/x", "/dev/shm", "/dev"])
def test_a_mount_that_hides_the_operators_is_refused(path: str) -> None:
    (fault,) = faults(in_container(volumeMounts=[{"name": "v", "mountPath": path}]))
    assert fault.startswith("spec.containers[0].volumeMounts[0].mountPath: expected a path that isn't")


def test_a_mount_beside_the_operators_is_fine() -> None:
    parse(in_container(volumeMounts=[{"name": "v", "mountPath": "/tmpfs"}, {"name": "v", "mountPath": "/x"}]))


@pytest.mark.parametrize("name", ["omnistage-tmp", "omnistage-later"])
def test_a_volume_that_is_the_operators_is_refused(name: str) -> None:
    (fault,) = faults({"spec": {"volumes": [{"name": name, "emptyDir": {}}]}})
    assert fault == f'spec.volumes[0].name: expected a name without omnistage-, got "{name}"'


@pytest.mark.parametrize("name", [names.CONTAINER, names.FETCH_CONTAINER])
def test_an_init_container_that_is_the_operators_is_refused(name: str) -> None:
    (fault,) = faults({"spec": {"initContainers": [{"name": name}]}})
    assert fault.startswith("spec.initContainers[0].name: expected a name that isn't the operator's")


@pytest.mark.parametrize("key", ["omnistage.io/epoch", "omnistage.io/later", "app.kubernetes.io/name"])
@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_a_label_that_is_the_operators_is_refused(part: str, key: str) -> None:
    (fault,) = faults({"metadata": {part: {key: "x"}}})
    assert fault == f'metadata.{part}[{key}]: expected nothing, since the operator sets it, got "x"'


def test_other_metadata_is_refused() -> None:
    assert faults({"metadata": {"name": "mine"}}) == [
        "metadata.name: expected one of the fields labels, annotations, got another field"
    ]


def test_what_can_not_be_merged_is_refused_with_its_place() -> None:
    template = {
        "metadata": {"labels": ["a"], "annotations": {"a": 1}},
        "spec": {
            "containers": {"name": "stage"},
            "initContainers": [{"image": "nameless"}, "text"],
            "volumes": [{"name": "v"}, {"name": "v"}],
        },
    }
    assert faults(template) == [
        'metadata.labels: expected a mapping, got ["a"]',
        "metadata.annotations[a]: expected a string, got 1",
        'spec.containers: expected a list, got {"name": "stage"}',
        'spec.initContainers[0]: expected a mapping with a name, got {"image": "nameless"}',
        'spec.initContainers[1]: expected a mapping with a name, got "text"',
        'spec.volumes[1].name: expected each name once, got "v"',
    ]


def test_a_spec_that_is_a_list_is_refused() -> None:
    assert faults({"spec": []}) == ["spec: expected a mapping, got []"]
