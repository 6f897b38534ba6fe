"""What one machine runs of a manifest, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.config import StageConfig, parse
from stage_api.errors import SpecError
from stage_runtime.local.manifest import checked, local_config, local_stage

HEAD = "apiVersion: omnistage.io/v1alpha1\nkind: DiffusionStage\n"
SHAPES = "model: {source: {embedded: shapes}}"


def manifest(folder: Path, *specs: str) -> Path:
    file = folder / "stage.yaml"
    file.write_text(
        "---\n".join(
            f"{HEAD}metadata: {{name: stage-{letter}}}\nspec: {{{spec}}}\n"
            for letter, spec in zip("abc", specs, strict=False)
        )
    )
    return file


def refusal(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        local_stage(path)
    return [str(fault) for fault in caught.value.faults]


def test_a_local_config_is_the_pods_but_for_the_time_in_which_clients_learn_of_its_end(
    tmp_path: Path,
) -> None:
    path = manifest(tmp_path, f"{SHAPES}, drain: {{admitSeconds: 7, timeoutSeconds: 9}}")
    config = local_config(local_stage(path))
    assert (config.drain.admit_seconds, config.drain.timeout_seconds) == (0, 9)
    (stage,) = checked(path)
    pods = StageConfig.from_stage(stage)
    assert config.model_copy(update={"drain": pods.drain}) == pods
    assert parse(config.encode()) == config


def test_more_than_one_replica_is_refused(tmp_path: Path) -> None:
    assert refusal(manifest(tmp_path, f"{SHAPES}, replicas: 2")) == [
        "spec.replicas: expected 1, since one machine runs one replica, got 2"
    ]


def test_what_only_a_cluster_does_is_refused_all_at_once(tmp_path: Path) -> None:
    claim = "model: {source: {persistentVolumeClaim: {claimName: models}}}"
    assert refusal(manifest(tmp_path, f"{claim}, suspend: true")) == [
        "spec.suspend: expected false, to run the stage, got true",
        "spec.model.source: expected embedded or hostPath, since only a cluster mounts or fetches models, "
        "got persistentVolumeClaim",
    ]


def test_one_machine_may_hold_several_pods_of_a_replica(tmp_path: Path) -> None:
    layout = "parallelism: {data: 4}, topology: {ranksPerPod: 2}"
    config = local_config(local_stage(manifest(tmp_path, f"{SHAPES}, {layout}")))
    assert config.topology().pods == 2


def test_several_stages_are_named(tmp_path: Path) -> None:
    assert refusal(manifest(tmp_path, SHAPES, SHAPES)) == [
        "expected one DiffusionStage, got 2: stage-a, stage-b"
    ]


def test_what_this_version_cannot_execute_is_refused(tmp_path: Path) -> None:
    assert refusal(manifest(tmp_path, f"{SHAPES}, parallelism: {{tensor: 2}}")) == [
        "spec.parallelism.tensor: expected 1 in this version, got 2"
    ]
