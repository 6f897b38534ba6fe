"""Where a stage's model lies on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.source import ClaimSource, Embedded, HostPath, ModelSource
from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines import source
from stage_runtime.pipelines.source import model_dir

SHAPES = ModelSource(embedded=Embedded.SHAPES)
CLAIM = ClaimSource(claim_name="models")


def test_a_host_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert model_dir(ModelSource(host_path=HostPath(path=str(tmp_path))), {}) == tmp_path


def test_a_mounted_model_is_where_the_environment_says() -> None:
    mounted = {"OMNISTAGE_MODEL_DIR": "/models/stage"}
    assert model_dir(ModelSource(persistent_volume_claim=CLAIM), mounted) == Path("/models/stage")
    assert model_dir(ModelSource(host_path=HostPath(path="/m")), mounted) == Path("/models/stage")
    assert model_dir(SHAPES, mounted) == model_dir(SHAPES, {})


def test_a_model_that_nobody_mounted_is_missed() -> None:
    with pytest.raises(
        ModelError, match="a model from persistentVolumeClaim is mounted or fetched by a cluster"
    ):
        model_dir(ModelSource(persistent_volume_claim=CLAIM), {})


def test_an_embedded_model_comes_from_the_repository() -> None:
    assert (model_dir(SHAPES, {}) / "model_index.json").is_file()


def test_the_environment_says_where_embedded_models_are(tmp_path: Path) -> None:
    (tmp_path / "shapes" / "checkpoint").mkdir(parents=True)
    assert model_dir(SHAPES, {"OMNISTAGE_MODELS": str(tmp_path)}) == tmp_path / "shapes" / "checkpoint"


def test_what_the_environment_says_is_not_replaced_by_another_place(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the embedded model shapes is not on this machine"):
        model_dir(SHAPES, {"OMNISTAGE_MODELS": str(tmp_path)})


def test_an_installed_package_without_models_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source, "REPOSITORY", tmp_path / "site-packages" / "models")
    with pytest.raises(ModelError, match="set OMNISTAGE_MODELS to the folder that holds shapes/checkpoint"):
        model_dir(SHAPES, {})
