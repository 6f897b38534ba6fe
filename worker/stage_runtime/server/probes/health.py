"""The probes: alive while the loop makes progress, ready while requests are admitted, started once warm.

They read what the engine says about itself and never wait for it, so they answer while a tick runs.
"""

from __future__ import annotations

import time
from typing import Final

from fastapi import APIRouter
from starlette.responses import JSONResponse

from stage_api import names
from stage_api.startup_progress import FIELD, Activity, StartProgress
from stage_runtime.engine.phase import Phase
from stage_runtime.hosting.client import StageClient
from stage_runtime.server.http.drain import Door, Drain

_WARMED: Final = frozenset({Phase.READY, Phase.DRAINING})
_ACTIVITIES: Final = {Phase.LOADING: Activity.LOADING, Phase.WARMING: Activity.WARMING}


def routes(stage: StageClient, drain: Drain) -> APIRouter:
    """GET /livez, /readyz and /startupz; 200 or 503, with the reason in the body."""
    router = APIRouter(include_in_schema=False)
    born_s = time.monotonic()

    @router.get(names.PATH_LIVE)
    async def livez() -> JSONResponse:
        progress = stage.progress()
        alive = stage.phase is not Phase.DEAD and not progress.overdue
        return _answer(
            alive,
            phase=stage.phase,
            tick=progress.tick,
            tick_seconds=round(progress.elapsed_s, 3),
            limit_seconds=progress.limit_s,
        )

    @router.get(names.PATH_READY)
    async def readyz() -> JSONResponse:
        return _answer(
            stage.phase is Phase.READY and drain.door is Door.OPEN, phase=stage.phase, door=drain.door.value
        )

    @router.get(names.PATH_STARTUP)
    async def startupz() -> JSONResponse:
        fields: dict[str, object] = {"phase": stage.phase, "seconds": round(time.monotonic() - born_s, 3)}
        if (activity := _ACTIVITIES.get(stage.phase)) is not None:
            fields[FIELD] = (stage.start_progress or StartProgress(activity=activity)).to_json()
        return _answer(stage.phase in _WARMED, **fields)

    return router


def _answer(good: bool, **fields: object) -> JSONResponse:
    return JSONResponse({"ok": good, **fields}, 200 if good else 503)
