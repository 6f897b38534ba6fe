"""Control calls over HTTP, on a listener of their own: never on the one that clients reach.

Each is carried out between two steps, on every rank. Sleep and wake may take minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from fastapi import FastAPI
from pydantic import Field
from starlette.responses import JSONResponse, StreamingResponse

from stage_runtime.core.control import (
    Control,
    Health,
    Pause,
    ProfileStart,
    ProfileStop,
    ReadTrace,
    Resume,
    Sleep,
    SleepLevel,
    Wake,
)
from stage_runtime.core.errors import InvalidRequest, NotAdmitting
from stage_runtime.engine.phase import Phase
from stage_runtime.hosting.client import StageClient
from stage_runtime.server.control.bearer import Bearer
from stage_runtime.server.http import errors
from stage_runtime.server.http.json_bodies import JsonRouter
from stage_runtime.server.http.limits import BodyLimit, LastResort, RequestIds
from stage_runtime.server.http.request_heads import Heads
from stage_runtime.server.http.schema import Body

PREFIX: Final = "/control"
_STEERED: Final = frozenset({Phase.READY, Phase.DRAINING})


class SleepRequest(Body):
    """Body of POST /control/sleep."""

    level: Annotated[SleepLevel, Field(description="1 keeps the weights in host memory, 2 drops them.")] = 1


class NoSuchTrace(InvalidRequest):
    """That rank has written no trace, or there is no such rank."""

    status = 404
    code = "trace_not_found"


@dataclasses.dataclass(frozen=True, slots=True)
class Steered:
    """One stage, told what to do."""

    stage: StageClient
    traces: Path
    """Folder for the traces of profiles, on the machine of each rank."""

    async def carry_out(self, call: Control) -> object:
        """The answer. Raises: NotAdmitting while the stage starts or when it is closed; what the call raises."""
        self.stage.check_health()
        if self.stage.phase not in _STEERED:
            raise NotAdmitting(f"the stage is {self.stage.phase}: it can't be steered")
        return await self.stage.control(call)

    async def read(self, rank: int, offset: int) -> bytes:
        """A piece of the trace that `rank` has written last. Raises: NoSuchTrace."""
        try:
            pieces = msgspec.convert(await self.carry_out(ReadTrace(rank, offset)), tuple[bytes, ...])
            return pieces[rank]
        except (InvalidRequest, IndexError) as error:
            raise NoSuchTrace(f"there is no trace of rank {rank}: {error}", "rank") from error

    async def trace(self, rank: int, first: bytes) -> AsyncIterator[bytes]:
        """All pieces of it, of which `first` is read already."""
        piece, offset = first, 0
        while piece:
            yield piece
            offset += len(piece)
            piece = await self.read(rank, offset)


def create_control_app(stage: StageClient, *, traces: Path, token: Path | None) -> FastAPI:
    """The application. `token`: file with the token that each call must bring; None where the listener itself is
    only for who may call."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(_routes(Steered(stage, traces)), prefix=PREFIX)
    errors.install(app)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit)
    if token is not None:
        app.add_middleware(Bearer, file=token)
    app.add_middleware(Heads)
    app.add_middleware(LastResort)
    app.add_middleware(RequestIds)
    return app


def _routes(steered: Steered) -> JsonRouter:
    router = JsonRouter()

    @router.get("")
    async def health() -> JSONResponse:
        """How each rank is."""
        ranks = msgspec.to_builtins(await steered.carry_out(Health()))
        return JSONResponse({"phase": steered.stage.phase, "ranks": ranks})

    @router.post("/pause")
    async def pause() -> JSONResponse:
        await steered.carry_out(Pause())
        return JSONResponse({})

    @router.post("/resume")
    async def resume() -> JSONResponse:
        await steered.carry_out(Resume())
        return JSONResponse({})

    @router.post("/sleep")
    async def sleep(body: SleepRequest = SleepRequest()) -> JSONResponse:  # noqa: B008 - frozen
        freed = await steered.carry_out(Sleep(body.level))
        return JSONResponse({"bytes": msgspec.to_builtins(freed)})

    @router.post("/wake")
    async def wake() -> JSONResponse:
        return JSONResponse({"bytes": msgspec.to_builtins(await steered.carry_out(Wake()))})

    @router.post("/profile/start")
    async def start_profile() -> JSONResponse:
        await steered.carry_out(ProfileStart(str(steered.traces)))
        return JSONResponse({})

    @router.post("/profile/stop")
    async def stop_profile() -> JSONResponse:
        """The names of the traces, in rank order."""
        paths = msgspec.convert(await steered.carry_out(ProfileStop()), tuple[str, ...])
        return JSONResponse({"traces": [Path(path).name for path in paths]})

    @router.get("/traces/{rank}")
    async def trace(rank: Annotated[int, Field(ge=0)]) -> StreamingResponse:
        """The trace that this rank has written last, wherever it runs."""
        first = await steered.read(rank, 0)
        return StreamingResponse(steered.trace(rank, first), media_type="application/gzip")

    return router
