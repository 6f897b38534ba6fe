"""By what sizes go follows from the checkpoint's own configs, whatever its family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stage_runtime.pipelines.call_signature import read_call_signature
from stage_runtime.pipelines.contract import Checkpoint
from stage_runtime.pipelines.generic import record_for
from stage_runtime.pipelines.size_steps import SizeSteps, size_steps

KL = {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "latent_channels": 16}
DC = {
    "_class_name": "AutoencoderDC",
    "encoder_block_out_channels": [128, 256, 512, 512, 1024, 1024],
    "latent_channels": 32,
}
HUNYUAN_VIDEO = {
    "_class_name": "AutoencoderKLHunyuanVideo",
    "block_out_channels": [128, 256, 512, 512],
    "latent_channels": 16,
    "spatial_compression_ratio": 8,
    "temporal_compression_ratio": 4,
}
WAN_21 = {
    "_class_name": "AutoencoderKLWan",
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "temperal_downsample": [False, True, True],
}
WAN_22 = {**WAN_21, "z_dim": 48, "patch_size": 2, "scale_factor_spatial": 16, "scale_factor_temporal": 4}
LTX = {
    "_class_name": "AutoencoderKLLTXVideo",
    "block_out_channels": [128, 256, 512, 512],
    "latent_channels": 128,
    "patch_size": 4,
    "patch_size_t": 1,
    "spatio_temporal_scaling": [True, True, True, False],
}
MOVQ = {"_class_name": "VQModel", "block_out_channels": [128, 256, 256, 512], "norm_type": "spatial"}


def checkpoint(
    folder: Path, vae: dict[str, Any], denoiser: dict[str, Any], vae_name: str = "vae"
) -> Checkpoint:
    for name, config in ((vae_name, vae), ("denoiser", denoiser)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    index = {
        vae_name: ["diffusers", "V"],
        "denoiser": ["diffusers", "D"],
        "_class_name": "P",
        "absent": [None, None],
    }
    return Checkpoint(folder, index)


@pytest.mark.parametrize(
    ("vae", "denoiser", "steps"),
    [
        (KL, {}, (8, 1)),
        (KL, {"in_channels": 16, "patch_size": 2}, (16, 1)),
        (KL, {"in_channels": 64, "patch_size": 1}, (16, 1)),
        (KL, {"in_channels": 64, "patch_size": 2}, (16, 1)),
        (KL, {"in_channels": 16, "all_patch_size": [1, 2]}, (16, 1)),
        (DC, {"in_channels": 32, "patch_size": 1}, (32, 1)),
        (DC, {"in_channels": 32, "patch_size": 2}, (64, 1)),
        (HUNYUAN_VIDEO, {"in_channels": 16, "patch_size": 2, "patch_size_t": 1}, (16, 4)),
        (WAN_21, {"in_channels": 16, "patch_size": [1, 2, 2]}, (16, 4)),
        (WAN_22, {"in_channels": 48, "patch_size": [1, 2, 2]}, (32, 4)),
        (LTX, {"in_channels": 128, "patch_size": 1}, (32, 8)),
        (MOVQ, {"in_channels": 4}, (64, 1)),
    ],
)
def test_steps_are_the_factors_of_the_vae_times_the_patch(
    vae: dict[str, Any], denoiser: dict[str, Any], steps: tuple[int, int], tmp_path: Path
) -> None:
    assert size_steps(checkpoint(tmp_path, vae, denoiser), ()) == SizeSteps(*steps)


@pytest.mark.parametrize("vae", [{}, {"_class_name": "AutoencoderOobleck"}, {"_class_name": "UNet2DModel"}])
def test_no_steps_follow_where_no_vae_says_any(vae: dict[str, Any], tmp_path: Path) -> None:
    assert size_steps(checkpoint(tmp_path, vae, {"patch_size": 2}), ()) is None


@pytest.mark.parametrize(
    ("name", "vae", "denoiser", "multiple", "frame_step"),
    [
        ("HunyuanVideoPipeline", HUNYUAN_VIDEO, {"in_channels": 16, "patch_size": 2}, 16, 4),
        ("SanaPipeline", DC, {"in_channels": 32, "patch_size": 1}, 32, 1),
        ("SanaSprintPipeline", DC, {"in_channels": 32, "patch_size": 1}, 32, 1),
        ("PRXPipeline", DC, {"in_channels": 32, "patch_size": 2}, 64, 1),
        ("BriaFiboPipeline", WAN_22, {"in_channels": 48, "patch_size": 1}, 32, 1),
        ("HunyuanImagePipeline", {**DC, "spatial_compression_ratio": 32}, {"in_channels": 32}, 64, 1),
        ("LTXPipeline", LTX, {"in_channels": 128, "patch_size": 1}, 32, 8),
        ("StableDiffusionPipeline", KL, {"in_channels": 16}, 8, 1),
    ],
)
def test_a_class_s_own_checks_and_defaults_are_heeded(
    name: str, vae: dict[str, Any], denoiser: dict[str, Any], multiple: int, frame_step: int, tmp_path: Path
) -> None:
    signature = read_call_signature(name)
    assert signature is not None
    record = record_for(signature, checkpoint(tmp_path, vae, denoiser))
    assert (record.limits.size_multiple, record.limits.frame_step) == (multiple, frame_step)
    for side in (record.defaults.width, record.defaults.height):
        assert side is None or side % multiple == 0
