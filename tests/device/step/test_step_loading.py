"""From a folder to a step model: by its index alone, whole, or with an error that names what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.contract import FieldClass, Option
from stage_runtime.pipelines.families.digits.model import DigitsModel
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.records import DIGITS as RECORD
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.step_loader import step_model_class
from support.step_models import CPU, DIGITS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be spoilt."""
    return Path(shutil.copytree(DIGITS, tmp_path / "checkpoint"))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "denoiser" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.invariant("DIFF-MODEL-INV-002")
def test_the_class_in_the_index_chooses_record_and_model(folder: Path) -> None:
    found = resolve(folder, pipeline_class="DigitsModel")
    assert found.record is RECORD
    assert isinstance(load(found, dtype=torch.float32, device=CPU), DigitsModel)


def test_another_class_than_the_stage_expects_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="the stage expects a FluxPipeline"):
        resolve(folder, pipeline_class="FluxPipeline")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_come_in_the_number_format_asked_for_and_draw(folder: Path, dtype: torch.dtype) -> None:
    model = load(resolve(folder), dtype=dtype, device=CPU)
    assert {parameter.dtype for parameter in model.denoiser.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in model.denoiser.parameters())
    assert not model.denoiser.training


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tensors: tensors.pop("leave.bias"), r"lacks weights \(1\): leave.bias"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), r"has unknown weights \(1\): extra"),
        (
            lambda tensors: tensors.update({"leave.bias": torch.zeros(3)}),
            r"has misshapen weights \(1\): leave.bias",
        ),
    ],
)
def test_weights_that_are_not_the_networks_are_named(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], why: str
) -> None:
    weights(folder, change)
    with pytest.raises(ModelError, match=why):
        load(resolve(folder), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda part: (part / "model.safetensors").unlink(), r"denoiser: .*model.safetensors is missing"),
        (lambda part: (part / "config.json").unlink(), r"denoiser: .*config.json is missing"),
        (lambda part: (part / "model.safetensors").write_bytes(b"no weights"), "is no safetensors file"),
        (lambda part: (part / "config.json").write_text("{"), "config.json can't be read"),
        (lambda part: (part / "config.json").write_text(json.dumps({"depth": 3})), "depth"),
    ],
)
def test_a_broken_part_is_named(folder: Path, spoil: Callable[[Path], object], why: str) -> None:
    spoil(folder / "denoiser")
    with pytest.raises(ModelError, match=why):
        load(resolve(folder), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    "change", [{"fine": 10**6}, {"coarse_blocks": 10**9}, {"condition": 10**12}], ids=str
)
def test_a_config_that_describes_a_giant_is_refused_before_it_takes_memory(
    folder: Path, change: dict[str, int]
) -> None:
    file = folder / "denoiser" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ModelError, match="describes a larger model than its weights are"):
        load(resolve(folder), dtype=torch.float32, device=CPU)


@pytest.mark.invariant("BATCH-INV-001")
def test_an_argument_that_the_record_leaves_out_stops_the_start() -> None:
    classes = {name: kind for name, kind in RECORD.classes.items() if name != "height"}
    with pytest.raises(
        ModelError, match="DigitsModel reads height, which the record digits doesn't classify"
    ):
        step_model_class(replace(RECORD, classes=classes))


@pytest.mark.invariant("BATCH-INV-001")
def test_an_argument_that_the_model_passes_over_stops_the_start() -> None:
    more = replace(
        RECORD,
        classes={**RECORD.classes, "thickness": FieldClass.PER_REQUEST},
        options={"thickness": Option(float, 0, 9)},
    )
    with pytest.raises(ModelError, match="the record digits names thickness, which DigitsModel doesn't read"):
        step_model_class(more)
