"""Where a model's files are: the folder on this machine that a stage's `model.source` means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stage_api import names
from stage_api.source import ModelSource
from stage_runtime.core.errors import ModelError

CHECKPOINT: Final = "checkpoint"
"""Folder of the diffusers format, in the folder that has the model's name."""
REPOSITORY: Final = Path(__file__).resolve().parents[3] / "models"
"""Where the embedded models are when this file lies in the repository."""


def model_dir(source: ModelSource, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in the diffusers format; whether it holds a sound model is not looked at.

    A cluster mounts what isn't in the image, wherever it comes from, and says in the environment where.

    Raises: ModelError when the model isn't on this machine.
    """
    if source.embedded is not None:
        return embedded_dir(source.embedded.value, environ)
    if given := environ.get(names.ENV_MODEL_DIR):
        return Path(given)
    if source.host_path is not None:
        return Path(source.host_path.path)
    raise ModelError(
        f"a model from {source.kind} is mounted or fetched by a cluster; "
        f"elsewhere set {names.ENV_MODEL_DIR} to the folder that holds it"
    )


def embedded_dir(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a model that comes with the project. Raises: ModelError when it isn't on this machine."""
    given = environ.get(names.ENV_MODELS)
    roots = [Path(given)] if given else [REPOSITORY, Path(names.EMBEDDED_DIR)]
    places = [root / name / CHECKPOINT for root in roots]
    for place in places:
        if place.is_dir():
            return place
    raise ModelError(
        f"the embedded model {name} is not on this machine: there is no {' and no '.join(map(str, places))}; "
        f"set {names.ENV_MODELS} to the folder that holds {name}/{CHECKPOINT}"
    )
