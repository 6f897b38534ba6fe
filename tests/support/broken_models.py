"""What the loader says of models that a test has broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve


def loaded(folder: Path) -> Any:
    return load(resolve(folder), dtype=torch.float32, device=torch.device("cpu"))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        loaded(folder)
    return str(refused.value)


def weights_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def sharded(folder: Path, part: str, variant: str = "") -> list[Path]:
    """The part's weights in several files with an index; the shards."""
    module = getattr(loaded(folder), part)
    for file in (folder / part).glob("*.safetensors"):
        file.unlink()
    module.save_pretrained(folder / part, max_shard_size="20KB", **({"variant": variant} if variant else {}))
    return sorted((folder / part).glob("*-of-*.safetensors"))
