"""What a pod's processes find in their environment: who they are, and where things lie.

What is the same for every pod of a stage is in its config instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_api.topology import Topology
from stage_operator.manifests.volume import model_folder
from stage_operator.values import Manifest

USER: Final = "omnistage"
"""Libraries ask for the name of the user, whom no file of the image need know."""


def of_any(stage: DiffusionStage, replica: int, epoch: int) -> list[Manifest]:
    """Of any container of ours."""
    return _list(_common(stage, replica, epoch))


def of_stage(
    stage: DiffusionStage, replica: int, epoch: int, ordinal: int, topology: Topology
) -> list[Manifest]:
    """Of the container with the engine, or with ranks that attend one elsewhere."""
    values = {
        **_common(stage, replica, epoch),
        names.ENV_GROUP_RANK: ordinal,
        names.ENV_WORLD_SIZE: topology.world_size,
        names.ENV_LOCAL_WORLD_SIZE: topology.ranks_per_pod,
        # Whatever is needed is there by now; who asks the network for it would only wait.
        "HF_HUB_OFFLINE": 1,
    }
    if stage.spec.accelerator:
        values[names.ENV_ACCELERATOR] = stage.spec.accelerator
    if topology.pods > 1:
        name, namespace = stage.metadata.name, stage.metadata.namespace
        values[names.ENV_MASTER_ADDR] = names.master_addr(name, namespace, replica, epoch)
        values[names.ENV_MASTER_PORT] = names.MASTER_PORT
    return _list(values)


def _common(stage: DiffusionStage, replica: int, epoch: int) -> dict[str, str | int]:
    values: dict[str, str | int] = {
        names.ENV_STAGE: stage.metadata.name,
        names.ENV_REPLICA: replica,
        names.ENV_EPOCH: epoch,
        "HOME": names.TMP_DIR,
        "LOGNAME": USER,
        "TMPDIR": names.TMP_DIR,
    }
    if (folder := model_folder(stage.spec.model.source)) is not None:
        values[names.ENV_MODEL_DIR] = folder
    return values


def _list(values: Mapping[str, str | int]) -> list[Manifest]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]
