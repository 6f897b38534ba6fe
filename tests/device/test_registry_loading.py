"""The loader gives exactly what plain diffusers gives, or an error that names the part at fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stage_runtime.core.errors import ModelError, OutOfDeviceMemory
from stage_runtime.pipelines.arguments import build_requests, small_arguments
from stage_runtime.pipelines.call_signature import read_call_signature
from stage_runtime.pipelines.contract import FieldClass, Wishes
from stage_runtime.pipelines.loader import check_signature, load, modules_of
from stage_runtime.pipelines.records import QWEN_IMAGE, RECORDS
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.step_loader import step_model_class
from support import tiny_models
from support.tiny_models import TinyModel

pytest_plugins = ("support.tiny_fixtures",)

SHAPES = Path(__file__).resolve().parents[2] / "models" / "shapes" / "checkpoint"
CPU = torch.device("cpu")

Edit = Callable[[Path], object]


@pytest.fixture
def folder_of(tiny_model: TinyModel) -> Callable[[str], Path]:
    """The folder of a tiny model, or of the shapes model."""
    return lambda name: SHAPES if name == "shapes" else tiny_model(name)


@pytest.fixture
def copy_of(tiny_model: TinyModel, tmp_path: Path) -> Callable[[str], Path]:
    """A tiny model that a test may break."""
    return lambda name: Path(shutil.copytree(tiny_model(name), tmp_path / name))


every_model = pytest.mark.parametrize("name", [*tiny_models.NAMES, "shapes"])


def output(pipeline: Any, arguments: dict[str, Any]) -> np.ndarray:
    made = pipeline(generator=torch.Generator().manual_seed(3), output_type="np", **arguments)
    return np.asarray(next(iter(made.values())))


@pytest.mark.invariant("DIFF-MODEL-INV-002")
@every_model
def test_a_loaded_model_makes_bit_for_bit_what_plain_diffusers_makes(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    model = resolve(folder_of(name))
    arguments = small_arguments(model, "a red circle", 3)
    if model.record.seconds_argument:
        arguments[model.record.seconds_argument] = 0.2
    ours = output(load(model, dtype=torch.float32, device=CPU), arguments)
    plain = output(tiny_models.load_plain(model.path), arguments)
    assert np.isfinite(ours).all()
    np.testing.assert_array_equal(ours, plain)


@every_model
def test_weights_are_those_of_plain_diffusers_and_aligned(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    model = resolve(folder_of(name))
    ours = dict(modules_of(load(model, dtype=torch.float32, device=CPU)))
    plain = dict(modules_of(tiny_models.load_plain(model.path)))
    assert ours.keys() == plain.keys()
    for part, module in ours.items():
        expected = plain[part].state_dict()
        assert not module.training
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, expected[key]), f"{part} {key}"
            assert tensor.data_ptr() % 64 == 0, f"{part} {key}"
            assert not tensor.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_model
def test_weights_have_the_dtype_asked_for_but_where_the_class_keeps_float32(
    name: str, dtype: torch.dtype, folder_of: Callable[[str], Path]
) -> None:
    pipeline = load(resolve(folder_of(name)), dtype=dtype, device=CPU)
    for _part, module in modules_of(pipeline):
        kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
        odd = [key for key, weight in module.named_parameters() if weight.dtype is not dtype]
        assert all(kept.intersection(key.split(".")) for key in odd)


@every_model
def test_records_take_every_default_request_to_an_output(name: str, folder_of: Callable[[str], Path]) -> None:
    model = resolve(folder_of(name))
    small = {"width": 32, "height": 32} if "width" in model.record.wished else {"seconds": 0.2}
    small |= {"num_frames": 5} if "num_frames" in model.record.wished else {}
    wishes = Wishes(prompt="a red circle", num_inference_steps=1, seed=0, **small)
    (request,) = build_requests(model, wishes, request_id="r")
    made = output(load(model, dtype=torch.float32, device=CPU), request.arguments)
    assert np.isfinite(made).all()
    if "width" in model.record.wished:
        assert made.shape[-3:] == (32, 32, 3)


@pytest.mark.invariant("BATCH-INV-001")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_every_record_agrees_with_the_installed_class(record: Any) -> None:
    import diffusers

    if record.step_model is not None:
        assert step_model_class(record).__name__ == record.pipeline_class
    else:
        check_signature(record, getattr(diffusers, record.pipeline_class))


@pytest.mark.parametrize(
    "class_name", ["SanaPipeline", "StableDiffusionPipeline", "LTXPipeline", "AudioLDM2Pipeline"]
)
def test_a_signature_read_from_source_is_the_one_that_is_imported(class_name: str) -> None:
    import inspect

    import diffusers

    read = read_call_signature(class_name)
    real = inspect.signature(getattr(diffusers, class_name).__call__).parameters
    assert read is not None
    assert set(read.parameters) == {p.name for p in real.values() if p.kind is not p.VAR_KEYWORD} - {"self"}


@pytest.mark.invariant("BATCH-INV-001")
def test_an_argument_that_the_record_leaves_out_stops_the_start(tiny_model: TinyModel) -> None:
    model = resolve(tiny_model("qwen-image"))
    fewer = {name: kind for name, kind in QWEN_IMAGE.classes.items() if name != "sigmas"}
    with pytest.raises(
        ModelError, match="QwenImagePipeline takes sigmas, which the record qwen-image doesn't"
    ):
        load(replace(model, record=replace(QWEN_IMAGE, classes=fewer)), dtype=torch.float32, device=CPU)


def test_an_argument_that_the_class_lacks_stops_the_start(tiny_model: TinyModel) -> None:
    model = resolve(tiny_model("qwen-image"))
    more = {**QWEN_IMAGE.classes, "cleverness": FieldClass.UNSUPPORTED}
    with pytest.raises(ModelError, match="names cleverness, which QwenImagePipeline doesn't take"):
        load(replace(model, record=replace(QWEN_IMAGE, classes=more)), dtype=torch.float32, device=CPU)


def test_sizes_that_the_checkpoint_cant_make_stop_the_start(tiny_model: TinyModel) -> None:
    model = resolve(tiny_model("qwen-image"))
    record = replace(QWEN_IMAGE, limits=replace(QWEN_IMAGE.limits, size_multiple=2))
    with pytest.raises(ModelError, match="makes sizes in multiples of 4, the record qwen-image allows"):
        load(replace(model, record=record), dtype=torch.float32, device=CPU)


def truncate(file: str) -> Edit:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-100])


def rewrite(file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Edit:
    def edit(folder: Path) -> None:
        weights = load_file(folder / file)
        change(weights)
        save_file(weights, folder / file, metadata={"format": "pt"})

    return edit


def pickle_instead(folder: Path) -> None:
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()


def without_first(weights: dict[str, torch.Tensor]) -> None:
    del weights[min(weights)]


def with_first_cut(weights: dict[str, torch.Tensor]) -> None:
    first = min(key for key, tensor in weights.items() if tensor.dim() == 2)
    weights[first] = weights[first][:-1].contiguous()


DENOISER = "transformer/diffusion_pytorch_model.safetensors"
READER = "text_encoder/model.safetensors"


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (truncate(DENOISER), "transformer"),
        (truncate(READER), "text_encoder"),
        (truncate("vae/config.json"), "vae"),
        (lambda folder: (folder / DENOISER).unlink(), "transformer"),
        (lambda folder: (folder / READER).unlink(), "text_encoder"),
        (lambda folder: shutil.rmtree(folder / "vae"), "vae"),
        (rewrite(DENOISER, without_first), "transformer"),
        (rewrite(READER, without_first), "text_encoder"),
        (rewrite(DENOISER, with_first_cut), "transformer"),
        (rewrite(READER, with_first_cut), "text_encoder"),
        (pickle_instead, "transformer"),
        (lambda folder: shutil.rmtree(folder / "tokenizer"), "tokenizer"),
        (lambda folder: (folder / "tokenizer" / "tokenizer.json").unlink(), "tokenizer"),
        (lambda folder: (folder / "scheduler" / "scheduler_config.json").unlink(), "scheduler"),
    ],
    ids=[
        "truncated denoiser",
        "truncated text encoder",
        "broken config",
        "no denoiser weights",
        "no text encoder weights",
        "no vae folder",
        "denoiser lacks a weight",
        "text encoder lacks a weight",
        "denoiser of another shape",
        "text encoder of another shape",
        "pickled weights only",
        "no tokenizer",
        "no vocabulary",
        "no scheduler",
    ],
)
def test_a_broken_part_is_a_model_error_that_names_it(
    edit: Edit, part: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("qwen-image")
    edit(folder)
    with pytest.raises(ModelError, match=part):
        load(resolve(folder), dtype=torch.float32, device=CPU)


def test_a_part_of_unknown_class_is_named(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("qwen-image")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(
        json.dumps(index | {"transformer": ["diffusers", "MadeUpModel"]})
    )
    with pytest.raises(ModelError, match="MadeUpModel"):
        load(resolve(folder), dtype=torch.float32, device=CPU)


def test_code_in_a_checkpoint_is_not_run(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("qwen-image")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"transformer": ["own", "OwnModel"]}))
    (folder / "transformer" / "own.py").write_text("raise SystemExit('the code of a checkpoint ran')")
    with pytest.raises(ModelError):
        load(resolve(folder), dtype=torch.float32, device=CPU)


def test_a_part_kept_in_another_dtype_is_refused(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import QwenImageTransformer2DModel

    real = QwenImageTransformer2DModel.from_pretrained.__func__

    def widened(cls: type, *args: Any, **kwargs: Any) -> Any:
        module, found = real(cls, *args, **kwargs)
        return module.to(torch.float64), found

    monkeypatch.setattr(QwenImageTransformer2DModel, "from_pretrained", classmethod(widened))
    with pytest.raises(
        ModelError, match=r"transformer: \S+ is torch.float64, the stage asks for torch.float32"
    ):
        load(resolve(tiny_model("qwen-image")), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    "raised",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 bytes")],
    ids=repr,
)
def test_a_machine_with_too_little_memory_is_not_the_models_fault(
    raised: Exception, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import QwenImageTransformer2DModel

    def exhausted(*_args: Any, **_kwargs: Any) -> Any:
        raise raised

    monkeypatch.setattr(QwenImageTransformer2DModel, "from_pretrained", exhausted)
    with pytest.raises(OutOfDeviceMemory, match="transformer"):
        load(resolve(tiny_model("qwen-image")), dtype=torch.float32, device=CPU)


def test_loading_is_silent_and_stays_off_the_network(tiny_model: TinyModel) -> None:
    """In a process of its own, with the network refused and the libraries not yet told to stay offline."""
    program = (
        "import socket, sys, torch; from pathlib import Path\n"
        "def refuse(*_): raise SystemExit('reached for the network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from stage_runtime.pipelines.loader import load\n"
        "from stage_runtime.pipelines.registry import resolve\n"
        "load(resolve(Path(sys.argv[1])), dtype=torch.float32, device=torch.device('cpu'))\n"
    )
    inherited = {key: value for key, value in os.environ.items() if "OFFLINE" not in key}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model("z-image"))],
        env=inherited | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    spoken = [line for line in done.stderr.splitlines() if "torchvision" not in line]
    assert (done.returncode, done.stdout, spoken) == (0, "", [])


def test_records_are_data_that_no_load_changes(tiny_model: TinyModel) -> None:
    model = resolve(tiny_model("stable-diffusion-3"))
    assert model.absent_components
    assert isinstance(model.record.classes, MappingProxyType)
    pipeline = load(model, dtype=torch.float32, device=CPU)
    assert all(getattr(pipeline, part) is None for part in model.absent_components)
