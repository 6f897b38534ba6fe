"""A stage over a checkpoint that its worker reads itself, so that dropped weights can be read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from stage_runtime.assemble_rank import LoadPipeline, assemble_worker
from stage_runtime.core.control import Control
from stage_runtime.core.request import Request
from stage_runtime.executor.uni import UniExecutor
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.sched.step import StepScheduler
from stage_runtime.worker.parts import WorkerParts
from stage_runtime.worker.worker import Worker
from support import tiny_models
from support.hub_stage import LATENTS, HubStage, ask
from support.toy_pipeline import BASE, toy

CPU: Final = torch.device("cpu")
SHAPES: Final = Path(__file__).parents[2] / "models" / "shapes" / "checkpoint"


def arguments_of(name: str) -> dict[str, Any]:
    """Small arguments with guidance on for the model `name`, but prompt and steps."""
    if name == "shapes":
        return {"height": 64, "width": 64, "true_cfg_scale": 3.0, "negative_prompt": ""}
    arguments = tiny_models.reference_arguments(name)
    return {key: value for key, value in arguments.items() if key != "num_inference_steps"}


def read(folder: Path) -> Callable[[torch.device], Any]:
    """What reads the checkpoint in `folder`, as a served stage does."""
    return lambda device: load(resolve(folder), dtype=torch.float32, device=device)


def a_worker(
    load: LoadPipeline = lambda _device: toy(),
    base: dict[str, Any] | None = None,
    *,
    rank: int = 0,
    extension: type | None = None,
) -> Worker:
    """A worker; of a toy model unless told otherwise."""
    arguments = BASE if base is None else base
    return assemble_worker(
        load,
        lambda prompt, steps: {**arguments, "prompt": prompt, "num_inference_steps": steps},
        CPU,
        rank=rank,
        options=RunnerOptions(output=LATENTS),
        parts=WorkerParts(extension=extension),
    )


def stage_of(worker: Worker) -> HubStage:
    """The worker under a scheduler and the uni executor."""
    return HubStage(UniExecutor(lambda: worker), worker, StepScheduler(max_num_seqs=4))


def drawn(stage: HubStage, base: dict[str, Any], request_id: str) -> bytes:
    """What one request gives: the same for every id."""
    stage.arrive(two_dogs(base, request_id))
    return stage.outputs()[request_id].tobytes()


def two_dogs(base: dict[str, Any], request_id: str) -> Request:
    """The request that `drawn` makes."""
    return ask(base, request_id, "two dogs beside a bed", steps=3, seed=33)


def one(stage: HubStage, call: Control) -> Any:
    """The answer of the only rank."""
    (answer,) = stage.executor.control(call)  # type: ignore[misc]
    return answer
