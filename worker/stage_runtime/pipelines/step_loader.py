"""From a record that names a step model to that model on a device, or a ModelError that says why not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors.torch import load_file

from stage_runtime.core.errors import ModelError, OutOfDeviceMemory
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.pipelines.contract import FieldClass, PipelineRecord, ResolvedModel, read_json_object
from stage_runtime.pipelines.model_size import check_built_size
from stage_runtime.pipelines.step_model import StepModel
from stage_runtime.pipelines.weight_files import need_file, read_weights

M = TypeVar("M", bound=torch.nn.Module)

CONFIG: Final = "config.json"
STEM: Final = "model"
WEIGHTS: Final = f"{STEM}.safetensors"
NAMED_KEYS: Final = 3
"""Weights that a message names before it only counts."""


def load_step_model(model: ResolvedModel, *, dtype: torch.dtype, device: torch.device) -> StepModel[Any]:
    """The model that the record names, loaded from the checkpoint.

    Raises: ModelError when record and class disagree or the files are broken; OutOfDeviceMemory.
    """
    kind = step_model_class(model.record)
    try:
        loaded = kind.load(model.path, dtype=dtype, device=device)
    except ModelError:
        raise
    except Exception as error:
        said = f"{model.path} can't be loaded as a {kind.__name__}: {type(error).__name__}: {error}"
        raise OutOfDeviceMemory(said) if out_of_memory(error) else ModelError(said) from error
    if not isinstance(loaded, StepModel):
        raise ModelError(f"{kind.__name__} lacks methods or attributes of a step model")
    return loaded


def step_model_class(record: PipelineRecord) -> type[StepModel[Any]]:
    """The class that the record names, with arguments as the record classifies them.

    Raises: ModelError naming what one has and the other lacks. Upholds: BATCH-INV-001.
    """
    module, _, name = (record.step_model or "").partition(":")
    kind: type[StepModel[Any]] = getattr(importlib.import_module(module), name)
    told = {argument for argument, what in record.classes.items() if what is not FieldClass.ENGINE}
    told |= set(record.constants)
    if unclassified := sorted(set(kind.arguments) - told):
        raise ModelError(
            f"{name} reads {', '.join(unclassified)}, which the record {record.name} doesn't classify"
        )
    open_ones = record.open_arguments | set(record.constants)
    if unread := sorted(open_ones - set(kind.arguments)):
        raise ModelError(f"the record {record.name} names {', '.join(unread)}, which {name} doesn't read")
    return kind


def load_network(
    folder: Path, build: Callable[[dict[str, Any]], M], *, dtype: torch.dtype, device: torch.device
) -> M:
    """One network from its folder (config.json, model.safetensors), for serving: no gradients, no dropout.

    `build` makes it from what config.json says. Raises: ModelError that names the folder, and the weights that are
    missing, unknown or of another shape.
    """
    try:
        config = read_json_object(need_file(folder / CONFIG, folder.name))
        check_built_size(lambda: build(config), folder, read_weights(folder, STEM, folder.name), folder.name)
        network = build(config)
        weights = load_file(folder / WEIGHTS)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{folder} can't be read: {type(error).__name__}: {error}") from error
    wanted = network.state_dict()
    for what, names in (
        ("lacks", wanted.keys() - weights.keys()),
        ("has unknown", weights.keys() - wanted.keys()),
        ("has misshapen", {n for n in wanted.keys() & weights.keys() if wanted[n].shape != weights[n].shape}),
    ):
        if names:
            shown = ", ".join(sorted(names)[:NAMED_KEYS]) + (", …" if len(names) > NAMED_KEYS else "")
            raise ModelError(f"{folder / WEIGHTS} {what} weights ({len(names)}): {shown}")
    network.load_state_dict(weights)
    return network.to(dtype).eval().requires_grad_(False).to(device)
