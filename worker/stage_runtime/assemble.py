"""The composition root: from a stage's config to its parts. The one file that knows every class, and no logic.

Importing it loads no torch: what lies below the line is imported by the thread that builds the executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.execution import unsupported
from stage_api.spec import EngineSpec, ModelSpec
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.mode import SCHEDULERS, Mode
from stage_runtime.executor.base import Executor
from stage_runtime.metrics import Metrics
from stage_runtime.pipelines.arguments import lay_defaults, small_arguments
from stage_runtime.pipelines.contract import Defaults, ResolvedModel
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.source import model_dir
from stage_runtime.pipelines.warmup_shapes import warmup_requests
from stage_runtime.sched.admission import Coalescing
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.stage.inline import InlineStage

if TYPE_CHECKING:
    from fastapi import FastAPI

    from stage_runtime.server.drain import Drain


def resolve_model(spec: ModelSpec) -> ResolvedModel:
    """The checkpoint that the stage serves, under the stage's defaults; no weight is read.

    Raises: ModelError when it is missing or of another class; SpecError for defaults that it can't take.
    """
    return lay_defaults(
        resolve(model_dir(spec.source), pipeline_class=spec.pipeline_class),
        Defaults(**spec.defaults.model_dump()),
    )


def build_engine(config: StageConfig, model: ResolvedModel, *, name: str = "engine") -> Engine:
    """The engine of a stage, not yet started; its thread loads the model.

    Raises: SpecError for what this version can't execute, or a warm-up that model or line can't take.
    """
    if faults := (*unsupported(config), *_unqueueable(config.engine)):
        raise SpecError(faults)
    return Engine(
        build_executor=_executor(config.engine, model),
        scheduler=_scheduler(config.engine),
        startup_timeout_s=float(config.startup.timeout_seconds),
        warmup=warmup_requests(model, config.engine.warmup),
        name=name,
    )


def build_app(config: StageConfig, model: ResolvedModel, engine: Engine, drain: Drain) -> FastAPI:
    """The HTTP application of a stage, its metrics told by the engine. Call on the event loop that serves it."""
    from stage_runtime.server.app import Settings, create_app

    metrics = Metrics(config.name)
    engine.observe(metrics)
    settings = Settings(stage_name=config.name, served_name=config.served_name)
    return create_app(InlineStage(engine), model, settings, metrics=metrics, drain=drain)


def _scheduler(spec: EngineSpec) -> BaseScheduler:
    return SCHEDULERS[Mode(spec.mode.value)](
        max_num_seqs=spec.max_num_seqs,
        max_queue_size=spec.max_queue_size,
        coalescing=Coalescing(max_wait_s=spec.max_wait_ms / 1000),
    )


def _executor(spec: EngineSpec, model: ResolvedModel) -> Callable[[], Executor]:
    def build() -> Executor:
        import torch

        from stage_runtime.executor.uni import UniExecutor
        from stage_runtime.pipelines.loader import load
        from stage_runtime.runner.runner import RunnerOptions
        from stage_runtime.worker.worker import Worker, choose_device

        dtype = getattr(torch, spec.dtype.value)
        device = choose_device(spec.device.value)
        options = RunnerOptions(merge=not spec.batch_invariant)
        return UniExecutor(
            lambda: Worker(
                lambda at: load(model, dtype=dtype, device=at),
                partial(small_arguments, model),
                device,
                options=options,
            )
        )

    return build


def _unqueueable(spec: EngineSpec) -> tuple[Fault, ...]:
    """Warm-up batches pass through the line like every request."""
    return tuple(
        Fault(
            f"spec.engine.warmup[{place}].batch",
            f"at most maxQueueSize {spec.max_queue_size}",
            str(shape.batch),
        )
        for place, shape in enumerate(spec.warmup)
        if shape.batch > spec.max_queue_size
    )
