"""POST /v1/images/generations: its route, and what OpenAPI says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from stage_runtime.server.http.bodies import EVENT_SCHEMA
from stage_runtime.server.http.endpoints import Served
from stage_runtime.server.http.errors import REFUSALS
from stage_runtime.server.http.json_bodies import JsonRouter
from stage_runtime.server.images.answer import Images
from stage_runtime.server.images.encoder import Encoder
from stage_runtime.server.images.schema import ImageRequest, ImageResponse

PATH: Final = "/v1/images/generations"
_ANSWERS: Final[Mapping[int | str, dict[str, Any]]] = {
    200: {
        "model": ImageResponse,
        "description": "The images; with `stream`, the events.",
        "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
    },
    **REFUSALS,
}


class ImageEndpoints:
    """Implements `http.endpoints.Endpoints` for models that make pictures."""

    def __init__(self, served: Served) -> None:
        self._encoder = Encoder()
        self._images = Images(served, self._encoder)

    def routes(self) -> APIRouter:
        """The one path."""
        router = JsonRouter()

        @router.post(PATH, response_model=None, responses=dict(_ANSWERS))
        async def generate(body: ImageRequest, request: Request) -> Response:
            """Make images; with `stream`, server-sent events tell how they come."""
            return await self._images.answer(body, request)

        return router

    def close(self) -> None:
        """End the encoder's threads."""
        self._encoder.close()
