"""What is drawn with: the embedded model, or one so small that the work around it is most of the work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from stage_runtime.pipelines.source import embedded_dir

SHAPES: Final = "shapes"
TINY: Final = "tiny"
NAMES: Final = (SHAPES, TINY)
TINY_LAYERS, TINY_HEADS = 2, 2


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """The model in the diffusers format."""
    shapes = embedded_dir(SHAPES)
    if name == SHAPES:
        yield shapes
        return
    with TemporaryDirectory(prefix="omnistage-bench-") as scratch:
        tiny = Path(scratch) / TINY
        shutil.copytree(shapes, tiny)
        _shrink(tiny / "transformer")
        yield tiny


def _shrink(transformer: Path) -> None:
    """Put a smaller denoiser there, of random weights, the same ones each time."""
    import torch
    from diffusers import QwenImageTransformer2DModel

    config = QwenImageTransformer2DModel.load_config(transformer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = QwenImageTransformer2DModel.from_config(
            config, num_layers=TINY_LAYERS, num_attention_heads=TINY_HEADS
        )
    shutil.rmtree(transformer)
    model.save_pretrained(transformer)
