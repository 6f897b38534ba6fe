"""The composition root: from a stage's config to its parts. The one file that knows every class, and no logic.

Importing it loads no torch: what lies below the line is imported by the thread that builds the executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.execution import unsupported
from stage_api.offload import skips_warmup
from stage_api.spec import EngineSpec
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.mode import SCHEDULERS, Mode
from stage_runtime.executor.select import select
from stage_runtime.extensions import Given, stage_classes, with_runner
from stage_runtime.metrics import Metrics
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.warmup_shapes import warmup_requests
from stage_runtime.sched.admission import Coalescing
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.stage.inline import InlineStage

if TYPE_CHECKING:
    from fastapi import FastAPI

    from stage_runtime.server.drain import Drain


def build_engine(
    config: StageConfig,
    model: ResolvedModel,
    *,
    epoch: int = 0,
    name: str = "engine",
    given: Given = Given(),  # noqa: B008 - a frozen value
) -> Engine:
    """The engine of a stage, not yet started; its thread loads the model, or starts the ranks that do.

    Raises: SpecError for what this version can't execute, a class of the stage's own that can't be used, or a
    warm-up that model or line can't take.
    """
    if faults := (*unsupported(config), *_unqueueable(config.engine)):
        raise SpecError(faults)
    classes = stage_classes(config.engine.extensions, given)
    config = with_runner(config, classes.engine)
    return classes.engine(
        build_executor=select(config, model, epoch=epoch, own=classes.executor),
        scheduler=_scheduler(config, classes.scheduler),
        startup_timeout_s=float(config.startup.timeout_seconds),
        warmup=() if skips_warmup(config) else warmup_requests(model, config.engine.warmup),
        name=name,
    )


def build_app(config: StageConfig, model: ResolvedModel, engine: Engine, drain: Drain) -> FastAPI:
    """The HTTP application of a stage, its metrics told by the engine. Call on the event loop that serves it."""
    from stage_runtime.server.app import Settings, create_app

    metrics = Metrics(config.name)
    engine.observe(metrics)
    settings = Settings(stage_name=config.name, served_name=config.served_name)
    return create_app(InlineStage(engine), model, settings, metrics=metrics, drain=drain)


def _scheduler(config: StageConfig, own: type[BaseScheduler] | None) -> BaseScheduler:
    """Slots are counted for each copy of the model; which copy has which request is the executor's business."""
    spec, copies = config.engine, config.parallelism.data
    max_wait_s = spec.max_wait_ms / 1000
    return (own or SCHEDULERS[Mode(spec.mode.value)])(
        max_num_seqs=spec.max_num_seqs * copies,
        max_queue_size=spec.max_queue_size,
        coalescing=Coalescing(max_wait_s) if copies == 1 else Coalescing.data_parallel(max_wait_s),
    )


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
