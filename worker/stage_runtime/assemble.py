"""The composition root: from a stage's config to its parts. The one file that knows every class, and no logic.

Importing it loads no torch: what lies below the line is imported by the thread that builds the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from stage_api.config import StageConfig, parse
from stage_api.errors import Fault, SpecError
from stage_api.execution import unsupported
from stage_api.offload import skips_warmup
from stage_api.spec import EngineProcess, EngineSpec, Mode
from stage_api.startup_progress import StartProgress
from stage_runtime.engine.base import StageEngine
from stage_runtime.engine.engine import Engine
from stage_runtime.executor.select import select
from stage_runtime.extensions import Given, stage_classes, with_runner
from stage_runtime.hosting.client import StageClient
from stage_runtime.hosting.remote_engine import ChildSpec, RemoteEngine
from stage_runtime.metrics import Metrics
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.served_checkpoint import resolve_model
from stage_runtime.pipelines.warmup_shapes import warmup_requests
from stage_runtime.sched.admission import Coalescing
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.sched.step import StepScheduler

if TYPE_CHECKING:
    from fastapi import FastAPI

    from stage_runtime.server.http.drain import Drain

SCHEDULERS: Final[Mapping[Mode, type[BaseScheduler]]] = {
    Mode.REQUEST: RequestScheduler,
    Mode.STEP: StepScheduler,
}


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

    def tell(progress: StartProgress) -> None:
        engine.note_start(progress)

    engine = classes.engine(
        build_executor=select(config, model, epoch=epoch, own=classes.executor, tell=tell),
        scheduler=_scheduler(config, classes.scheduler),
        startup_timeout_s=float(config.startup.timeout_seconds),
        warmup=() if skips_warmup(config) else warmup_requests(model, config.engine.warmup),
        name=name,
    )
    return engine


class ChildArgument(msgspec.Struct, frozen=True):
    """What the engine's own process is told."""

    config: str
    epoch: int
    name: str
    executor: str | None = None
    scheduler: str | None = None


def build_stage_engine(
    config: StageConfig,
    model: ResolvedModel,
    *,
    epoch: int = 0,
    name: str = "engine",
    given: Given = Given(),  # noqa: B008 - a frozen value
    log_as: str | None = None,
) -> StageEngine:
    """The engine of a stage where the stage wants it: in this process, or in a child. Not yet started.

    `log_as`: the stage's name in a child's log; None leaves logging as Python has it.
    Raises: SpecError as `build_engine`. What only a child can find, it finds while it starts.
    """
    if config.engine.process is EngineProcess.INLINE:
        return build_engine(config, model, epoch=epoch, name=name, given=given)
    if faults := (*unsupported(config), *_unqueueable(config.engine), *_unportable(given)):
        raise SpecError(faults)
    argument = ChildArgument(config.encode(), epoch, name, *_paths(given))
    return RemoteEngine(
        ChildSpec(
            factory=f"{__name__}:engine_in_child",
            argument=msgspec.json.encode(argument),
            startup_timeout_s=float(config.startup.timeout_seconds),
            name=name,
            log_as=log_as,
        )
    )


def engine_in_child(argument: bytes) -> Engine:
    """The engine of a `ChildArgument`; called in the child."""
    told = msgspec.json.decode(argument, type=ChildArgument)
    config = parse(told.config)
    given = Given(executor=told.executor, scheduler=told.scheduler)
    return build_engine(config, resolve_model(config.model), epoch=told.epoch, name=told.name, given=given)


def client_of(engine: StageEngine) -> StageClient:
    """A client of the stage, for one event loop."""
    return StageClient(engine)


def build_app(
    config: StageConfig,
    model: ResolvedModel,
    engine: StageEngine,
    drain: Drain,
    *,
    epoch: int = 0,
    last_start_s: float | None = None,
) -> FastAPI:
    """The HTTP application of a stage, its metrics told by the engine. Call on the event loop that serves it.

    Raises: ModelError for a model whose output can't be sent over HTTP.
    """
    from stage_runtime.server.http.app import Settings, create_app

    metrics = Metrics(config.name)
    engine.observe(metrics)
    settings = Settings(
        stage_name=config.name,
        served_name=config.served_name,
        world_size=config.topology().world_size,
        epoch=epoch,
        last_start_s=last_start_s,
    )
    return create_app(client_of(engine), model, settings, metrics=metrics, drain=drain)


def _scheduler(config: StageConfig, own: type[BaseScheduler] | None) -> BaseScheduler:
    """Slots are counted for each copy of the model; which copy has which request is the executor's business."""
    spec, copies = config.engine, config.parallelism.data
    max_wait_s = spec.max_wait_ms / 1000
    return (own or SCHEDULERS[spec.mode])(
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


def _unportable(given: Given) -> tuple[Fault, ...]:
    """Classes reach a child by their import paths only."""
    return tuple(
        Fault(place, "package.module:Class, for an engine in a child process", repr(own))
        for place, own in (("executor", given.executor), ("scheduler", given.scheduler))
        if own is not None and not isinstance(own, str)
    )


def _paths(given: Given) -> tuple[str | None, str | None]:
    executor, scheduler = given.executor, given.scheduler
    return (
        executor if isinstance(executor, str) else None,
        scheduler if isinstance(scheduler, str) else None,
    )
