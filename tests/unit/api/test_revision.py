"""What makes another revision of a stage, and so other pods, and what doesn't."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stage_api import names
from stage_api.canonical import canonical_spec
from stage_api.config import StageConfig
from stage_api.manifest import parse_stage
from stage_api.revision import revision_of
from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage

SHAPES: dict[str, Any] = {"model": {"source": {"embedded": "shapes"}}}


def stage(**spec: Any) -> DiffusionStage:
    return parse_stage(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "flux", "namespace": "art"},
            "spec": {**SHAPES, **spec},
        }
    )


def revision(**spec: Any) -> str:
    return revision_of(stage(**spec))


# Of each field that counts one other value, and of each that doesn't.
CHANGES = [
    {"model": {"source": {"embedded": "digits"}}},
    {"model": {**SHAPES["model"], "name": "org/flux"}},
    {"engine": {"maxNumSeqs": 2}},
    {"engine": {"image": "registry.example/worker:2"}},
    {"engine": {"imagePullPolicy": "Always"}},
    {"engine": {"imagePullSecrets": [{"name": "pull"}]}},
    {"parallelism": {"data": 2}},
    {"topology": {"ranksPerPod": 1}, "parallelism": {"cfg": 2}},
    {"resources": {"requests": {"cpu": 4}}},
    {"resources": {"accelerator": ""}},
    {"resources": {"sharedMemory": "4Gi"}},
    {"podTemplate": {"metadata": {"labels": {"team": "art"}}}},
    {"startup": {"timeoutSeconds": 60}},
    {"drain": {"timeoutSeconds": 60}},
    {"offload": {"distributedLayerwise": {"enabled": True}}},
    {"vae": {"slicing": True}},
    {"vae": {"tiling": True}},
    {"control": {"enabled": True, "tokenSecretRef": {"name": "keys"}}},
    {"gang": {"mode": "None"}},
]
SURROUNDINGS = [
    {"replicas": 3},
    {"suspend": True},
    {"failurePolicy": {"maxRestarts": 1}},
    {"rollout": {"paused": True, "partition": 1}},
    {"disruption": {"maxUnavailable": 2}},
    {"networkPolicy": {"enabled": False}},
    {"monitoring": {"podMonitor": {"enabled": True}}},
    {"gang": {"scheduleTimeoutSeconds": 1}},
]


@pytest.mark.parametrize("change", CHANGES, ids=json.dumps)
def test_what_changes_a_pod_makes_another_revision(change: dict[str, Any]) -> None:
    assert revision(**change) != revision()


def test_no_two_changes_share_a_revision() -> None:
    assert len({revision(**change) for change in CHANGES}) == len(CHANGES)


@pytest.mark.parametrize("change", SURROUNDINGS, ids=json.dumps)
def test_what_changes_no_pod_makes_no_other_revision(change: dict[str, Any]) -> None:
    assert revision(**change) == revision()


def test_every_field_of_the_spec_is_known_to_change_pods_or_not_to() -> None:
    tried = {section for change in (*CHANGES, *SURROUNDINGS) for section in change}
    assert tried == {field.alias for field in DiffusionStageSpec.model_fields.values()}
    counted = {section for change in CHANGES for section in change}
    assert counted == {e.alias for e in entries(DiffusionStageSpec) if e.section.replaces_pods}


def test_every_field_of_the_spec_is_entered_as_a_section() -> None:
    assert [entry.name for entry in entries(DiffusionStageSpec)] == list(DiffusionStageSpec.model_fields)


@pytest.mark.parametrize("change", CHANGES, ids=json.dumps)
def test_pods_of_one_revision_read_one_config(change: dict[str, Any]) -> None:
    def config(made: DiffusionStage) -> str:
        return StageConfig.from_stage(made).encode()

    assert (config(stage(**change)) == config(stage())) or revision(**change) != revision()


def test_to_write_a_default_down_makes_no_other_revision() -> None:
    assert revision(**stage().spec.to_json()) == revision()


SIDECAR = {"name": "proxy", "image": "proxy:1"}


def beside(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{**SIDECAR, **fields}]}}}


def volume(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"volumes": [{"name": "v", **fields}]}}}


def claim(amount: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": amount}}}
    return volume(ephemeral={"volumeClaimTemplate": {"spec": spec}})


def divided(divisor: Any) -> dict[str, Any]:
    source = {"resourceFieldRef": {"resource": "limits.cpu", "divisor": divisor}}
    return beside(env=[{"name": "CPUS", "valueFrom": source}])


def limits(**amounts: Any) -> dict[str, Any]:
    return {"resources": {"limits": amounts}}


# Of each place that a wish may be written in, two spellings of one and the same.
SPELLINGS = [
    ({"resources": {"requests": {"cpu": "1000m"}}}, {"resources": {"requests": {"cpu": 1}}}),
    ({"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": 1.0}}}),
    ({"resources": {"requests": {"cpu": 0.5}}}, {"resources": {"requests": {"cpu": "500m"}}}),
    ({"resources": {"requests": {"memory": "1024Mi"}}}, {"resources": {"requests": {"memory": "1Gi"}}}),
    (
        {"resources": {"requests": {"example.com/x": "1e3"}}},
        {"resources": {"requests": {"example.com/x": "1k"}}},
    ),
    (limits(memory="64Gi", cpu="8"), limits(memory=68719476736, cpu="8000m")),
    ({"resources": {"sharedMemory": "4096Mi"}}, {"resources": {"sharedMemory": "4Gi"}}),
    ({"resources": {"sharedMemory": "2048Mi"}}, {}),
    ({"resources": {"requests": {}, "limits": {}}}, {}),
    (limits(cpu=4), {"resources": {"limits": {"cpu": 4}, "requests": {"cpu": "4000m"}}}),
    ({"resources": {"accelerator": "nvidia.com/gpu"}}, {}),
    ({"resources": {"accelerator": ""}, "engine": {"device": "cpu"}}, {"engine": {"device": "cpu"}}),
    (
        {"resources": {"accelerator": "amd.com/gpu"}, "engine": {"device": "rocm"}},
        {"engine": {"device": "rocm"}},
    ),
    ({"topology": {"ranksPerPod": 1}}, {}),
    ({"topology": {"ranksPerPod": 2}, "parallelism": {"cfg": 2}}, {"parallelism": {"cfg": 2}}),
    ({"model": {**SHAPES["model"], "name": "flux"}}, {}),
    (
        {"model": {**SHAPES["model"], "defaults": {"guidanceScale": 3}}},
        {"model": {**SHAPES["model"], "defaults": {"guidanceScale": 3.0}}},
    ),
    (beside(resources={"limits": {"cpu": "1000m"}}), beside(resources={"limits": {"cpu": 1}})),
    (volume(emptyDir={"sizeLimit": "1024Mi"}), volume(emptyDir={"sizeLimit": "1Gi"})),
    (claim("10240Mi"), claim("10Gi")),
    (divided("1000m"), divided(1)),
    (
        {"podTemplate": {"spec": {"overhead": {"cpu": "1000m"}}}},
        {"podTemplate": {"spec": {"overhead": {"cpu": 1}}}},
    ),
    ({"podTemplate": {"metadata": {}, "spec": {"nodeSelector": {}, "tolerations": [], "volumes": None}}}, {}),
    ({"podTemplate": {"spec": None}}, {}),
    (beside(env=None, resources={"limits": None}), beside(resources={})),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS, ids=json.dumps)
def test_two_spellings_of_one_wish_have_one_revision(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert revision(**one) == revision(**other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (limits(cpu=1), limits(cpu="1m")),
        (limits(cpu=1), {"resources": {"requests": {"cpu": 1}}}),
        (limits(cpu=4), {"resources": {"limits": {"cpu": 4}, "requests": {"cpu": 2}}}),
        (limits(memory="4Gi"), limits(memory="4G")),
        (
            {"resources": {"accelerator": "nvidia.com/gpu"}, "engine": {"device": "cpu"}},
            {"engine": {"device": "cpu"}},
        ),
        ({"model": {**SHAPES["model"], "name": "flax"}}, {}),
        (volume(emptyDir={}), volume(emptyDir={"sizeLimit": "1Gi"})),
        (beside(resources={"limits": {"cpu": "lots"}}), beside(resources={"limits": {"cpu": "more"}})),
    ],
    ids=json.dumps,
)
def test_what_is_not_as_much_is_another_revision(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert revision(**one) != revision(**other)


@pytest.mark.parametrize("change", [*CHANGES, *SURROUNDINGS], ids=json.dumps)
def test_a_spec_in_its_one_form_stays_as_it_is(change: dict[str, Any]) -> None:
    form = canonical_spec(stage(**change))
    assert canonical_spec(stage(**form.to_json())) == form


def test_the_order_of_a_template_makes_no_other_revision() -> None:
    one = {"spec": {"priorityClassName": "high", "runtimeClassName": "nvidia"}}
    other = {"spec": dict(reversed(one["spec"].items()))}
    assert revision(podTemplate=one) == revision(podTemplate=other)


def test_a_revision_is_a_label_value() -> None:
    assert names.label_value(revision()) == revision()


# A revision that another version computes otherwise restarts every pod of every stage at its upgrade.
@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ({}, "f017e4631c"),
        ({"engine": {"maxNumSeqs": 8, "dtype": "float32"}, "parallelism": {"cfg": 2}}, "c877f96a2d"),
        (
            {
                "model": {"source": {"huggingFace": {"repo": "a/b", "revision": "0" * 40}}, "name": "模型"},
                "podTemplate": {"spec": {"nodeSelector": {"pool": "gpu"}}},
                "resources": {"limits": {"memory": "64Gi", "cpu": 8}},
            },
            "1eb6bab53a",
        ),
    ],
)
def test_revisions_stay_what_they_were_in_every_version(spec: dict[str, Any], known: str) -> None:
    assert revision(**spec) == known
