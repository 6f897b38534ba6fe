"""Who may steer a stage: whoever brings the token that a file holds."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from stage_runtime.server.http.errors import envelope

MIN_TOKEN_CHARS: Final = 16
_SCHEME: Final = "bearer"

log = logging.getLogger(__name__)


class Bearer:
    """Lets nothing past without the token. The file is read at each call, so that it may be changed at any time."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 to a wrong token or none, and 503 while there is none to compare with."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        expected = self._expected()
        if expected is None:
            refusal = envelope(
                503, "the token of control calls can't be read, or is too short", code="no_token"
            )
        elif hmac.compare_digest(_given(scope), expected):
            return await self._app(scope, receive, send)
        else:
            refusal = envelope(401, "authorization: expected the stage's control token", code="unauthorized")
            refusal.headers["www-authenticate"] = "Bearer"
        refusal.headers["connection"] = "close"
        return await refusal(scope, receive, send)

    def _expected(self) -> bytes | None:
        try:
            token = self._file.read_bytes().strip()
        except OSError as error:
            log.warning("control token can't be read", extra={"path": str(self._file), "error": str(error)})
            return None
        if len(token) < MIN_TOKEN_CHARS:
            log.warning(
                "control token is too short", extra={"path": str(self._file), "least": MIN_TOKEN_CHARS}
            )
            return None
        return token


def _given(scope: Scope) -> bytes:
    """What the client brings; nothing, where it brings none."""
    scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return token.strip().encode("latin-1") if scheme.lower() == _SCHEME else b""
