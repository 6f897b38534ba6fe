"""JSON bodies as clients mean them: an object that names a key twice is refused, at any depth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException


class DuplicateKey(HTTPException):
    """An object says two things under one name; which of them counts, readers of JSON don't agree on."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(400)


class Unreadable(HTTPException):
    """JSON that isn't read, or text that is none."""

    def __init__(self, expected: str) -> None:
        super().__init__(400, f"the body: expected {expected}")


def parse(body: bytes) -> Any:
    """The value. Raises: DuplicateKey; Unreadable; json.JSONDecodeError."""
    try:
        return json.loads(body, object_pairs_hook=_object)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise Unreadable("JSON in UTF-8") from None
    except RecursionError:
        raise Unreadable("JSON that is nested less deeply") from None
    except ValueError:  # of a whole number that is too long to be turned into one
        raise Unreadable(f"numbers of at most {sys.get_int_max_str_digits()} digits") from None


class JsonRouter(APIRouter):
    """A router whose paths read their bodies so."""

    def __init__(self) -> None:
        super().__init__(route_class=_JsonRoute)


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


class _JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKey(key)
            seen.add(key)
    return found
