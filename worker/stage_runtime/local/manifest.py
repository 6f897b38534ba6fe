"""From a manifest to what one machine runs of it: the same contract, less what only a cluster has."""

from __future__ import annotations

from pathlib import Path

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.manifest import load_manifest
from stage_api.spec import DrainSpec
from stage_api.stage import DiffusionStage


def checked(path: Path) -> tuple[DiffusionStage, ...]:
    """The stages in a manifest, each of which this version can execute. Raises: SpecError with every fault."""
    return load_manifest(path, executable=True)


def only_stage(path: Path) -> DiffusionStage:
    """The one stage in a manifest. Raises: SpecError, as `checked`, or if there are several."""
    stages = checked(path)
    if len(stages) > 1:
        named = ", ".join(stage.metadata.name for stage in stages)
        raise SpecError([Fault("", f"one {stages[0].kind}", f"{len(stages)}: {named}")])
    return stages[0]


def local_stage(path: Path) -> DiffusionStage:
    """The one stage in a manifest. Raises: SpecError with every fault, also for what one machine can't do."""
    stage = only_stage(path)
    faults = []
    if stage.spec.replicas != 1:
        expected = "1, since one machine runs one replica"
        faults.append(Fault("spec.replicas", expected, str(stage.spec.replicas)))
    if stage.spec.suspend:
        faults.append(Fault("spec.suspend", "false, to run the stage", "true"))
    source = stage.spec.model.source
    if source.embedded is None and source.host_path is None:
        expected = "embedded or hostPath, since only a cluster mounts or fetches models"
        faults.append(Fault("spec.model.source", expected, source.kind))
    if faults:
        raise SpecError(faults)
    return stage


def local_config(stage: DiffusionStage) -> StageConfig:
    """The config of a stage's only replica on this machine."""
    config = StageConfig.from_stage(stage)
    # No load balancer has to learn that the stage is going.
    drain = DrainSpec(admit_seconds=0, timeout_seconds=config.drain.timeout_seconds)
    return config.model_copy(update={"drain": drain})
