"""POST /v1/images/generations: from a well-formed body to an answer, whole or as events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stage_runtime.core.errors import InvalidRequest, StageError
from stage_runtime.core.outcome import Aborted, Completed, Failed, Output, Progressed, as_error
from stage_runtime.core.request import Request
from stage_runtime.server.http.bodies import EventStream, Pieces, event, unless_gone
from stage_runtime.server.http.endpoints import Served
from stage_runtime.server.http.errors import error_body, field_of
from stage_runtime.server.http.finishing import FINISH_ID_HEADER
from stage_runtime.server.http.limits import CLIENT_GONE
from stage_runtime.server.http.submission import Submission, requests_of, submit
from stage_runtime.server.images.encoder import Encoder
from stage_runtime.server.images.schema import ImageRequest
from stage_runtime.server.images.wishes import as_asked, wishes

PARTIAL: Final = "image_generation.partial_image"
COMPLETED: Final = "image_generation.completed"
NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
"""OpenAI's type of the event demands it. Nothing here is counted in tokens."""


@dataclass(frozen=True, slots=True)
class Images:
    """The endpoint of one stage."""

    served: Served
    encoder: Encoder

    async def answer(self, body: ImageRequest, asked: HttpRequest) -> Response:
        """The answer to `body`. Raises: StageError, for a request that is refused or that failed as a whole."""
        try:
            requests = requests_of(self.served, wishes(body), asked.state.request_id, body.model)
        except InvalidRequest as refused:
            raise as_asked(refused) from None
        outcomes = await submit(self.served, requests)
        if body.stream:
            return await self._streamed(body, asked, requests, outcomes)
        async with aclosing(outcomes):
            parts = await unless_gone(asked.receive, self._whole(body, requests, outcomes))
        return Response(status_code=CLIENT_GONE) if parts is None else Pieces(parts)

    async def _streamed(
        self, body: ImageRequest, asked: HttpRequest, requests: Sequence[Request], outcomes: Submission
    ) -> Response:
        """The answer as events, once the requests have begun well."""
        try:
            begun = await unless_gone(asked.receive, outcomes.begin())
        except BaseException:
            await outcomes.aclose()
            raise
        if begun is None:
            await outcomes.aclose()
            return Response(status_code=CLIENT_GONE)
        finish_id = self.served.finishing.add(requests)

        async def close() -> None:
            self.served.finishing.discard(finish_id)
            await outcomes.aclose()

        events = self._events(body, requests, outcomes)
        return EventStream(events, close, headers={FINISH_ID_HEADER: finish_id})

    async def _whole(
        self, body: ImageRequest, requests: Sequence[Request], outcomes: Submission
    ) -> list[bytes]:
        """The JSON of a whole answer, in parts. Raises: what the first request that failed, failed with."""
        done: dict[str, Output] = {}
        async for outcome in outcomes:
            match outcome:
                case Completed(output=output):
                    done[outcome.request_id] = output
                case Failed() | Aborted():
                    raise as_error(outcome)
                case Progressed():
                    pass
        outputs = [done.pop(request.request_id) for request in requests]
        size = _size(outputs[0])
        images = await asyncio.gather(*(self._encoded(body, output) for output in outputs))
        head = {
            "created": int(time.time()),
            "background": "opaque",
            "output_format": body.file_format,
            "size": size,
            "seeds": [request.seed for request in requests],
        }
        parts = [json.dumps(head, separators=(",", ":")).encode()[:-1], b',"data":[']
        for place, image in enumerate(images):
            parts += [b',{"b64_json":"' if place else b'{"b64_json":"', image, b'"}']
        return [*parts, b"]}"]

    async def _events(
        self, body: ImageRequest, requests: Sequence[Request], outcomes: Submission
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Previews and finished images as they come; an error ends it."""
        places = {request.request_id: place for place, request in enumerate(requests)}
        try:
            async for outcome in outcomes:
                match outcome:
                    case Progressed(preview=Output() as preview, preview_index=index):
                        about: dict[str, object] = {"partial_image_index": index}
                        name, output = PARTIAL, preview
                    case Completed(output=output):
                        about = {"seed": requests[places[outcome.request_id]].seed, "usage": NO_USAGE}
                        name = COMPLETED
                    case Failed() | Aborted():
                        raise as_error(outcome)
                    case _:
                        continue
                image = await self._encoded(body, output)
                about["image_index"] = places[outcome.request_id]
                yield event(name, _described(body, output) | about, image)
        except StageError as error:
            fields = error_body(error.status, str(error), param=field_of(error), code=error.code)
            yield event("error", fields)

    async def _encoded(self, body: ImageRequest, output: Output) -> bytes:
        began_s = time.monotonic()
        image = await self.encoder.base64_image(output, body.file_format, body.compression)
        self.served.metrics.on_encoded(time.monotonic() - began_s)
        return image


def _described(body: ImageRequest, output: Output) -> dict[str, object]:
    return {
        "created_at": int(time.time()),
        "size": _size(output),
        "quality": "auto",
        "background": "opaque",
        "output_format": body.file_format,
    }


def _size(output: Output) -> str:
    height, width = output.shape[:2]
    return f"{width}x{height}"
