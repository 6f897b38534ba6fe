"""A checkpoint's record follows from its model_index.json, and a checkpoint that can't be served says why."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import Defaults, Wishes
from stage_runtime.pipelines.records import FLUX, QWEN_IMAGE, RECORDS
from stage_runtime.pipelines.registry import resolve

SHAPES = Path(__file__).resolve().parents[3] / "models" / "shapes" / "checkpoint"

Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A folder with a model_index.json of the given values, and no weights."""

    def write(class_name: object = "QwenImagePipeline", **values: object) -> Path:
        index = {"_class_name": class_name, "_diffusers_version": "0.42.1", **values}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        return tmp_path

    return write


@pytest.mark.invariant("DIFF-MODEL-INV-002")
@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("QwenImagePipeline", "qwen-image"),
        ("StableDiffusion3Pipeline", "stable-diffusion-3"),
        ("FluxPipeline", "flux"),
        ("WanPipeline", "wan"),
        ("ZImagePipeline", "z-image"),
        ("PixArtSigmaPipeline", "pixart-sigma"),
        ("StableDiffusionXLPipeline", "stable-diffusion-xl"),
        ("StableAudioPipeline", "stable-audio"),
    ],
)
def test_the_class_in_the_index_chooses_the_record(
    class_name: str, name: str, checkpoint: Checkpoint
) -> None:
    model = resolve(checkpoint(class_name))
    assert model.record.name == name
    assert model.defaults == model.record.defaults


@pytest.mark.invariant("DIFF-MODEL-INV-002")
def test_the_shapes_checkpoint_gets_its_own_record() -> None:
    model = resolve(SHAPES)
    assert (model.record.name, model.record.pipeline_class) == ("shapes", "QwenImagePipeline")
    assert model.defaults == Defaults(width=64, height=64, num_inference_steps=20, guidance_scale=3.0)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"boundary_ratio": 0.875}, "wan-two-denoisers"),
        ({"boundary_ratio": None, "expand_timesteps": True}, "wan-fine-steps"),
        ({"boundary_ratio": None, "expand_timesteps": False}, "wan"),
    ],
)
def test_kinds_of_one_class_are_told_apart_by_their_index(
    values: dict[str, object], name: str, checkpoint: Checkpoint
) -> None:
    assert resolve(checkpoint("WanPipeline", **values)).record.name == name


def test_kinds_that_differ_in_a_part_only_are_told_apart_by_its_config(checkpoint: Checkpoint) -> None:
    folder = checkpoint("FluxPipeline")
    (folder / "transformer").mkdir()
    config = folder / "transformer" / "config.json"
    config.write_text('{"guidance_embeds": false}')
    assert resolve(folder).record.name == "flux-unguided"
    config.write_text('{"guidance_embeds": true}')
    assert resolve(folder).record.name == "flux"
    config.write_text("{")
    with pytest.raises(ModelError, match=r"transformer/config\.json can't be read"):
        resolve(folder)


@pytest.mark.invariant("DIFF-MODEL-INV-004")
def test_adding_a_model_is_adding_one_record(checkpoint: Checkpoint) -> None:
    added = replace(
        QWEN_IMAGE, name="new", pipeline_class="NewPipeline", defaults=replace(QWEN_IMAGE.defaults, width=512)
    )
    model = resolve(checkpoint("NewPipeline"), records=(*RECORDS, added))
    (request,) = build_requests(model, Wishes(prompt="a circle"), request_id="r")
    assert model.record is added
    assert request.arguments["width"] == 512


def test_an_absent_component_is_noted(checkpoint: Checkpoint) -> None:
    folder = checkpoint(
        "StableDiffusion3Pipeline", text_encoder_3=[None, None], vae=["diffusers", "AutoencoderKL"]
    )
    assert resolve(folder).absent_components == ("text_encoder_3",)


def test_a_class_without_a_record_gets_one_from_its_arguments(checkpoint: Checkpoint) -> None:
    assert resolve(checkpoint("SanaPipeline")).record.name == "SanaPipeline"


def test_a_stage_that_names_the_class_gets_it(checkpoint: Checkpoint) -> None:
    assert resolve(checkpoint("FluxPipeline"), pipeline_class="FluxPipeline").record is FLUX


@pytest.mark.parametrize(
    ("class_name", "values", "reason"),
    [
        ("MadeUpPipeline", {}, "MadeUpPipeline is not a pipeline of the installed diffusers"),
        ("KandinskyV22Pipeline", {}, "lacks prompt"),
        ("DDPMPipeline", {}, "its __call__ lacks prompt"),
        (["my_code", "MyPipeline"], {}, "may not bring its own code"),
        (None, {}, "_class_name is null"),
        ("QwenImagePipeline", {"_omnistage_record": "squares"}, 'has no record "squares"'),
        ("SanaPipeline", {"_omnistage_record": "shapes"}, 'has no record "shapes"'),
    ],
)
def test_a_checkpoint_that_cant_be_served_says_why(
    class_name: object, values: dict[str, object], reason: str, checkpoint: Checkpoint
) -> None:
    with pytest.raises(ModelError, match=reason):
        resolve(checkpoint(class_name, **values))


def test_another_class_than_the_stage_says_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(
        ModelError, match=r"expects a FluxPipeline, its model_index\.json says QwenImagePipeline"
    ):
        resolve(checkpoint(), pipeline_class="FluxPipeline")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "has no model_index.json"),
        ({"modular_model_index.json": "{}"}, "modular pipelines can't be served yet"),
        ({"model_index.json": '{"_class_name": '}, "can't be read"),
        ({"model_index.json": "\xff\xfe"}, "can't be read"),
        ({"model_index.json": "[]"}, "expected an object, got a list"),
    ],
)
def test_a_folder_that_holds_no_model_says_so(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=reason):
        resolve(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such folder"):
        resolve(tmp_path / "nowhere")


def test_the_process_exits_with_the_code_for_an_invalid_model() -> None:
    assert ModelError.exit_code == 65


def test_neither_torch_nor_diffusers_is_loaded_to_resolve_a_model_and_build_its_requests() -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from stage_runtime.pipelines.arguments import build_requests\n"
        "from stage_runtime.pipelines.contract import Wishes\n"
        "from stage_runtime.pipelines.generic import record_for\n"
        "from stage_runtime.pipelines.call_signature import read_call_signature\n"
        "from stage_runtime.pipelines.registry import resolve\n"
        "build_requests(resolve(Path(sys.argv[1])), Wishes(prompt='a'), request_id='r')\n"
        "record_for(read_call_signature('SanaPipeline'))\n"
        "print(sorted({'torch', 'diffusers', 'transformers', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(SHAPES)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
