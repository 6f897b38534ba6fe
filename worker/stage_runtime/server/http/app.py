"""The HTTP application of one stage: its routes, and what wraps them.

Two applications may live in one process; nothing here is global.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

from stage_api import names
from stage_runtime.hosting.client import StageClient
from stage_runtime.metrics import CONTENT_TYPE, Metrics
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.server.http import errors, finishing, models
from stage_runtime.server.http.drain import Drain, LastAnswers, UnderWay
from stage_runtime.server.http.endpoints import Served
from stage_runtime.server.http.finishing import Finishing
from stage_runtime.server.http.limits import BodyLimit, CrowdLimit, LastResort, RequestIds
from stage_runtime.server.http.request_heads import AbsoluteForm, Heads
from stage_runtime.server.http.start_times import StartTimes
from stage_runtime.server.modalities import endpoints_of
from stage_runtime.server.probes import health
from stage_runtime.server.probes.readings import StageReadings

VERSION: Final = "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the application needs to know of its stage."""

    stage_name: str
    served_name: str
    world_size: int = 1
    epoch: int = 0
    last_start_s: float | None = None
    """What the start of the life before took, in seconds, if there was one."""


def create_app(
    stage: StageClient,
    model: ResolvedModel,
    settings: Settings,
    *,
    metrics: Metrics | None = None,
    drain: Drain | None = None,
) -> FastAPI:
    """The application. The engine behind `stage` may still be loading. Call on the event loop that serves it.

    `metrics`: those that the engine reports to. `drain`: the door that `serve` closes.
    Raises: ModelError for a model whose output no endpoint here can send.
    """
    metrics = metrics or Metrics(settings.stage_name)
    drain = drain or Drain()
    world = {"world_size": settings.world_size, "epoch": settings.epoch}
    readings = StageReadings(stage, model, settings.served_name, world)
    metrics.watch(readings)
    own = Finishing()
    endpoints = endpoints_of(model)(
        Served(
            stage=stage, model=model, name=settings.served_name, metrics=metrics, drain=drain, finishing=own
        )
    )

    starts = StartTimes(settings.last_start_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(starts.watch(stage), name="starts")
        yield
        watching.cancel()
        endpoints.close()

    # One URL for one thing: no redirects to other spellings, and no pages that load scripts from elsewhere.
    app = FastAPI(
        title="omnistage",
        version=VERSION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )

    @app.get(names.PATH_METRICS, include_in_schema=False)
    async def scrape() -> Response:
        await readings.ask()
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    app.include_router(endpoints.routes())
    app.include_router(finishing.routes(stage, own))
    app.include_router(models.routes(stage, model, settings.served_name))
    app.include_router(health.routes(stage, drain))
    errors.install(app, lambda error: starts.retry_after_s(error, stage.phase))
    _wrap(app, metrics, drain)
    return app


def _wrap(app: FastAPI, metrics: Metrics, drain: Drain) -> None:
    """Put before `app` what every request passes. The last one added is the first to see it."""
    app.add_middleware(BodyLimit)
    app.add_middleware(CrowdLimit)
    app.add_middleware(UnderWay, drain=drain)
    app.add_middleware(Heads)
    app.add_middleware(LastResort)
    app.add_middleware(LastAnswers, drain=drain)
    app.add_middleware(RequestIds, on_answer=metrics.on_answered)
    app.add_middleware(AbsoluteForm)
