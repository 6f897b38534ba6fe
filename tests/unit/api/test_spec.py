"""What a stage gets that asks for nothing, and how the models behave in Python."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stage_api import names
from stage_api.errors import Fault, SpecError
from stage_api.manifest import parse_stage
from stage_api.parallelism import AXES, ParallelismSpec
from stage_api.source import ModelSource
from stage_api.spec import DiffusionStageSpec, EngineSpec, Mode, ModelSpec, WarmupSpec
from stage_api.status import TopologyStatus
from stage_api.topology import derive

SMALLEST = DiffusionStageSpec(model=ModelSpec(source=ModelSource.model_validate({"embedded": "shapes"})))


def test_the_defaults_are_the_published_ones() -> None:
    assert SMALLEST.to_json() == {
        "replicas": 1,
        "model": {"source": {"embedded": "shapes"}, "defaults": {}},
        "engine": {
            "mode": "step",
            "executor": "mp",
            "process": "inline",
            "extensions": {},
            "dtype": "bfloat16",
            "device": "auto",
            "maxNumSeqs": 1,
            "maxQueueSize": 64,
            "maxWaitMs": 0,
            "batchInvariant": False,
            "port": 8000,
            "warmup": [],
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [],
        },
        "parallelism": {
            "tensor": 1,
            "sequence": {"ulysses": 1, "ring": 1},
            "pipeline": 1,
            "cfg": 1,
            "data": 1,
        },
        "topology": {},
        "startup": {"timeoutSeconds": 1800, "fetchTimeoutSeconds": 3600},
        "drain": {"admitSeconds": 5, "timeoutSeconds": 120},
        "failurePolicy": {
            "maxRestarts": 6,
            "windowSeconds": 3600,
            "backoff": {"initialSeconds": 10, "maxSeconds": 300, "jitterPercent": 20},
            "resetAfterSeconds": 600,
            "nodeLost": {"graceSeconds": 45, "forceDeleteAfterSeconds": 120},
        },
        "offload": {"distributedLayerwise": {"enabled": False, "allGather": True}},
        "vae": {"slicing": False, "tiling": False},
        "control": {"enabled": False},
        "suspend": False,
        "resources": {"requests": {}, "limits": {}, "sharedMemory": "2Gi"},
        "podTemplate": {},
        "gang": {"mode": "Auto", "scheduleTimeoutSeconds": 600},
        "rollout": {
            "maxUnavailable": 1,
            "maxSurge": 0,
            "partition": 0,
            "paused": False,
            "minReadySeconds": 0,
            "progressDeadlineSeconds": 1800,
        },
        "disruption": {"maxUnavailable": 1},
        "networkPolicy": {"enabled": True, "ingressFrom": []},
        "monitoring": {"podMonitor": {"enabled": False, "intervalSeconds": 30, "labels": {}}},
    }


def test_a_spec_can_not_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SMALLEST.replicas = 2  # type: ignore[misc]


def test_a_law_holds_for_specs_made_in_python_too() -> None:
    with pytest.raises(ValidationError, match="at most maxNumSeqs 1"):
        EngineSpec(warmup=(WarmupSpec(width=64, height=64, batch=2),))


def test_a_choice_may_be_given_as_its_text_or_its_name() -> None:
    assert EngineSpec.model_validate({"mode": "request"}) == EngineSpec(mode=Mode.REQUEST)


def test_the_whole_world_sits_in_one_pod_unless_asked_otherwise() -> None:
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "s"},
        "spec": {"model": {"source": {"embedded": "shapes"}}, "parallelism": {"tensor": 8}},
    }
    assert parse_stage(manifest).spec.ranks_per_pod == 8


def test_every_axis_stands_in_the_manifest() -> None:
    section = ParallelismSpec().to_json()
    flat = {name: value for name, value in section.items() if name != "sequence"}
    flat |= {f"sequence.{name}": value for name, value in section["sequence"].items()}
    assert set(flat) == {f"sequence.{axis}" if axis in ("ulysses", "ring") else axis for axis in AXES}


def test_the_status_sums_up_a_topology() -> None:
    topology = derive(ParallelismSpec(tensor=2, cfg=2), 2)
    assert TopologyStatus.of(topology).to_json() == {
        "worldSize": 4,
        "podsPerReplica": 2,
        "ranksPerPod": 2,
        "order": "tensor-ulysses-ring-pipeline-cfg-data",
        "degrees": {"tensor": 2, "ulysses": 1, "ring": 1, "pipeline": 1, "cfg": 2, "data": 1},
        "digest": topology.digest,
    }


def test_a_spec_error_lists_its_faults_one_a_line() -> None:
    error = SpecError([Fault("a", "1", "2"), Fault("", "a mapping", "null")])
    assert str(error) == "a: expected 1, got 2\nexpected a mapping, got null"
