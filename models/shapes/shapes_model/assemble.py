"""Puts the trained parts together as one diffusers pipeline in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLForConditionalGeneration

from shapes_model.architecture import new_pipeline
from shapes_model.tokenizer import build_tokenizer

RECORD_KEY = "_omnistage_record"
RECORD = "shapes"


def assemble(run: Path, checkpoint: Path) -> None:
    """`run` holds what the two trainings wrote (`vae/` and `denoiser/`)."""
    denoiser = run / "denoiser"
    pipeline = new_pipeline(
        QwenImageTransformer2DModel.from_pretrained(denoiser / "transformer"),
        Qwen2_5_VLForConditionalGeneration.from_pretrained(denoiser / "text_encoder"),
        AutoencoderKLQwenImage.from_pretrained(run / "vae"),
        build_tokenizer(),  # afresh: one that has been used saves its padding, too
    )
    pipeline.to(torch.bfloat16)
    pipeline.save_pretrained(checkpoint)
    for config in checkpoint.glob("*/config.json"):
        forget_origin(config)
    name_record(checkpoint / "model_index.json")


def name_record(index: Path) -> None:
    """Say in the index which record of the runtime's registry the model belongs to."""
    values = {"_class_name": None, "_diffusers_version": None, RECORD_KEY: RECORD} | json.loads(
        index.read_text()
    )
    index.write_text(json.dumps(values, indent=2) + "\n")


def forget_origin(config: Path) -> None:
    """Diffusers notes the folder a part came from; the shipped files should not depend on it."""
    values = json.loads(config.read_text())
    values.pop("_name_or_path", None)
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
