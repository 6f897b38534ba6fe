"""What a pod is given so that its stage can be steered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.network import network_policy
from stage_operator.manifests.pod import pods
from stage_operator.values import Api, PlanSettings
from support.stages import stage_of

ENABLED = {"enabled": True, "tokenSecretRef": {"name": "steer", "key": "word"}}


def made(stage: DiffusionStage) -> tuple[Mapping[str, Any], ...]:
    return pods(stage, 0, 0, settings=PlanSettings(worker_image="worker"), api=Api())


def mounts(pod: Mapping[str, Any]) -> dict[str, Any]:
    """By path, of the stage's container."""
    return {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}


def test_the_token_of_control_calls_is_mounted_as_a_folder_in_the_first_pod_alone() -> None:
    """A file that is mounted by itself would never change, however often the Secret does."""
    first, second = made(stage_of(control=ENABLED, parallelism={"data": 2}, topology={"ranksPerPod": 1}))
    assert mounts(first)[names.CONTROL_TOKEN_DIR] == {
        "name": "omnistage-control",
        "mountPath": names.CONTROL_TOKEN_DIR,
        "readOnly": True,
    }
    assert [volume for volume in first["spec"]["volumes"] if volume["name"] == "omnistage-control"] == [
        {
            "name": "omnistage-control",
            "secret": {"secretName": "steer", "items": [{"key": "word", "path": "token"}]},
        }
    ]
    assert names.CONTROL_TOKEN_DIR not in mounts(second)
    assert names.CONTROL_TOKEN_DIR not in mounts(made(stage_of())[0])


def test_no_port_of_control_calls_is_declared_or_let_in() -> None:
    """It listens on the pod's own loopback, where a port-forward ends."""
    stage = stage_of(control=ENABLED)
    assert str(names.CONTROL_PORT) not in json.dumps([made(stage), network_policy(stage)])
