"""From a stage's config to the worker of one rank: the same for a worker in the engine's process and in its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from stage_api.config import StageConfig
from stage_runtime.devices.kinds import choose_device
from stage_runtime.pipelines.arguments import small_arguments
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.loader import load
from stage_runtime.runner.runner import RunnerOptions
from stage_runtime.worker.parts import parts_of
from stage_runtime.worker.worker import Worker


def build_worker(
    config: StageConfig,
    model: ResolvedModel,
    *,
    rank: int = 0,
    options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
) -> Worker:
    """Load the model on this rank's device. Call on the thread that will use it.

    Raises: ModelError, OutOfDeviceMemory; SpecError for a runner or an extension that can't be used.
    """
    spec = config.engine
    parts = parts_of(spec.extensions)
    device = choose_device(spec.device.value, rank % config.ranks_per_pod)
    dtype = getattr(torch, spec.dtype.value)
    return Worker(
        lambda at: load(model, dtype=dtype, device=at),
        partial(small_arguments, model),
        device,
        rank=rank,
        options=replace(options, merge=not spec.batch_invariant),
        parts=parts,
    )
