"""GET /v1/models: the served model as OpenAI lists it, and beside that what was found out about it at load."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter

from stage_runtime.core.capability import Capability
from stage_runtime.core.errors import NotAdmitting
from stage_runtime.hosting.client import StageClient
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.server.http.errors import ModelNotFound
from stage_runtime.server.http.schema import ErrorResponse, ModelCard, ModelList

_ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    "default": {"model": ErrorResponse, "description": "Anything that is no success."}
}


def routes(stage: StageClient, model: ResolvedModel, served_name: str) -> APIRouter:
    """GET /v1/models and /v1/models/{name}; names may hold slashes."""
    router = APIRouter()
    created = int(time.time())

    def card() -> ModelCard:
        return ModelCard(
            id=served_name,
            created=created,
            pipeline=model.record.pipeline_class,
            modality=model.record.modality.value,
            defaults=_given(model.defaults),
            limits=_given(model.record.limits),
            capability=_found(stage),
        )

    @router.get("/v1/models", responses=dict(_ERRORS))
    async def models() -> ModelList:
        """The one model of this stage."""
        return ModelList(data=[card()])

    @router.get("/v1/models/{name:path}", responses=dict(_ERRORS))
    async def named(name: str) -> ModelCard:
        """That model, by its name."""
        if name != served_name:
            raise ModelNotFound(name, served_name)
        return card()

    return router


def _given(values: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(values).items() if value is not None}


def _found(stage: StageClient) -> dict[str, Any] | None:
    """What the loaded model can do; None until it is loaded."""
    try:
        found: Capability = stage.capability
    except NotAdmitting:
        return None
    return {
        "batches": found.batches,
        "early_stop": found.early_stop,
        "resumable": found.resumable,
        "reason": found.reason,
        "previews": found.previews,
        "previews_reason": found.previews_reason,
        "components": [
            {"name": part.name, "merges": part.merges, "ragged": part.ragged, "reason": part.reason}
            for part in found.components
        ],
    }
