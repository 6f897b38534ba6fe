"""Tiny pipelines with random weights, of the real classes, in the format that diffusers saves and loads.

They are for whatever must hold for every model: a prompt goes in, an output comes out, and it depends on
prompt, seed and step count. The pictures mean nothing. Made offline, the same bytes every time.
"""

from __future__ import annotations

import contextlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

from support.tiny_pipelines import BUILDERS

TinyModel = Callable[[str], Path]
"""The fixture `tiny_model`: the folder of a model by its name."""

NAMES: Final[tuple[str, ...]] = tuple(BUILDERS)
EXACT_LENGTH: Final = ("qwen-image", "z-image")
"""Models whose denoiser sees as many text tokens as the prompt has; the others pad to a constant."""

_PICTURE: Final[dict[str, str | int | float | bool]] = {"height": 32, "width": 32, "num_inference_steps": 3}
_ARGUMENTS: Final[dict[str, dict[str, str | int | float | bool]]] = {
    "flux": _PICTURE | {"guidance_scale": 3.5, "max_sequence_length": 48},
    "pixart-sigma": _PICTURE
    | {
        "guidance_scale": 4.5,
        "max_sequence_length": 48,
        "clean_caption": False,
        "use_resolution_binning": False,
    },
    "qwen-image": _PICTURE | {"true_cfg_scale": 4.0, "negative_prompt": " "},
    "stable-audio": {"audio_end_in_s": 0.2, "num_inference_steps": 3, "guidance_scale": 5.0},
    "stable-diffusion-3": _PICTURE | {"guidance_scale": 5.0, "max_sequence_length": 16},
    "stable-diffusion-xl": _PICTURE | {"guidance_scale": 5.0},
    "wan": _PICTURE | {"num_frames": 5, "guidance_scale": 5.0, "max_sequence_length": 48},
    "z-image": _PICTURE | {"guidance_scale": 4.0, "max_sequence_length": 128},
}


def build(name: str, folder: Path) -> Path:
    """The model `name` saved in `folder`, which then holds model_index.json. Under a second."""
    with _quiet():
        pipeline = BUILDERS[name]()
        for component_name, component in pipeline.components.items():
            if isinstance(component, torch.nn.Module):
                fill_weights(component, component_name)
        pipeline.save_pretrained(folder)
    return folder


def reference_arguments(name: str) -> dict[str, str | int | float | bool]:
    """Plain arguments of a small, short call with guidance on; prompt and generator are the caller's."""
    return dict(_ARGUMENTS[name])


def fill_weights(module: torch.nn.Module, salt: str) -> None:
    """Every parameter from a generator of its own, seeded by its name, so that nothing depends on order.

    Matrices keep the size of what passes through them; gains are near 1 and biases near 0, but none is
    exactly so: a layer that starts at zero would hide prompt or time from the output.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{salt}.{name}".encode()))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.dim() >= 2:
                noise *= parameter[0].numel() ** -0.5
            elif name.endswith("weight"):
                noise = 1.0 + 0.1 * noise
            else:
                noise *= 0.1
            parameter.copy_(noise)
    module.eval()


def load_plain(folder: Path) -> DiffusionPipeline:
    """The model as a user of plain diffusers has it: float32, on the CPU, weights in aligned memory, quiet.

    Components that were saved as absent must be named again, or from_pretrained refuses to go on.
    """
    index = json.loads((folder / "model_index.json").read_text())
    absent = {key: None for key, value in index.items() if value == [None, None]}
    with _quiet():
        pipeline = DiffusionPipeline.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, **absent
        )
    pipeline.set_progress_bar_config(disable=True)
    for component in pipeline.components.values():
        if isinstance(component, torch.nn.Module):
            for parameter in component.parameters():
                parameter.data = parameter.data.clone()
    return pipeline


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without the deprecation warnings that the libraries' own code raises."""
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
