"""Every error as OpenAI's envelope: {"error": {"message", "type", "param", "code"}}.

The status and code of an error of ours stand on its class; this module only words them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from stage_runtime.core.errors import (
    AdmissionFull,
    EngineDeadError,
    InvalidRequest,
    NotAdmitting,
    StageError,
)
from stage_runtime.server.http.json_bodies import DuplicateKey
from stage_runtime.server.http.schema import BETWEEN_FIELDS, ErrorResponse

DEAD_RETRY_AFTER_S: Final = 10.0  # about what the shortest restart of a replica takes
MAX_FAULTS_SHOWN: Final = 10

REFUSALS: Final[Mapping[int | str, dict[str, Any]]] = {
    400: {"model": ErrorResponse, "description": "The request is wrong; `param` names the field."},
    404: {"model": ErrorResponse, "description": "This stage does not serve that model."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    429: {"model": ErrorResponse, "description": "The waiting line is full; see Retry-After."},
    503: {"model": ErrorResponse, "description": "The stage starts, drains or is dead; see Retry-After."},
    "default": {"model": ErrorResponse, "description": "Anything else that is no success."},
}
"""What OpenAPI says of the answers of a path that takes requests, but for its success."""

_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


class ModelNotFound(InvalidRequest):
    """The request names a model that this stage does not serve."""

    status = 404
    code = "model_not_found"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"the model {_shown(asked)} does not exist; this stage serves {served!r}", "model")


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The envelope as plain JSON values. Half a surrogate pair, which JSON can name and nobody can send, is escaped."""
    shown, blamed = _sendable(message), None if param is None else _sendable(param)
    return {"error": {"message": shown, "type": _kind(status), "param": blamed, "code": code}}


def envelope(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after_s: float | None = None,
) -> JSONResponse:
    """The envelope as an answer; `retry_after_s` is rounded up to whole seconds, at least 1."""
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return JSONResponse(error_body(status, message, param=param, code=code), status, headers)


def envelope_of(error: StageError, retry_after_s: float | None = None) -> JSONResponse:
    """The answer that `error` stands for. `retry_after_s`: where more is known of it than the error itself says."""
    if retry_after_s is None:
        retry_after_s = _retry_after_s(error)
    return envelope(
        error.status, str(error), param=field_of(error), code=error.code, retry_after_s=retry_after_s
    )


def field_of(error: StageError) -> str | None:
    """The request's field that is to blame, if one is."""
    return error.field if isinstance(error, InvalidRequest) else None


def install(app: FastAPI, retry_after_s: Callable[[StageError], float | None] = lambda error: None) -> None:
    """Make every route of `app` answer with the envelope. `retry_after_s`: what more is known of when to come back."""

    async def on_stage_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StageError)
        return envelope_of(error, retry_after_s(error))

    app.add_exception_handler(StageError, on_stage_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    message = "; ".join(_worded(fault) for fault in faults[:MAX_FAULTS_SHOWN])
    if len(faults) > MAX_FAULTS_SHOWN:
        message += f"; and {len(faults) - MAX_FAULTS_SHOWN} more"
    return envelope(400, message, param=_param(faults[0]), code=InvalidRequest.code)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, DuplicateKey):
        message = f"{_shown(error.key)}: expected once in an object, got twice"
        return envelope(400, message, param=error.key[:64], code=InvalidRequest.code)
    code = _CODES.get(error.status_code, InvalidRequest.code)
    answer = envelope(error.status_code, str(error.detail), code=code)
    answer.headers.update(error.headers or {})
    if answer.headers.get("allow") == "GET":
        answer.headers["allow"] = "GET, HEAD"
    return answer


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _kind(status: int) -> str:
    if status == AdmissionFull.status:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _retry_after_s(error: StageError) -> float | None:
    if isinstance(error, AdmissionFull | NotAdmitting):
        return error.retry_after_s
    return DEAD_RETRY_AFTER_S if isinstance(error, EngineDeadError) else None


def _param(fault: dict[str, Any]) -> str | None:
    """The field to blame; None when it is the body as a whole, or its syntax."""
    if fault["type"] == BETWEEN_FIELDS:
        return str(fault["ctx"]["field"])
    names = [str(part) for part in fault["loc"][1:]]
    return ".".join(names)[:64] if names and fault["type"] != "json_invalid" else None


def _worded(fault: dict[str, Any]) -> str:
    if fault["type"] == "json_invalid":
        return "the body is not valid JSON"
    if fault["type"] in ("model_attributes_type", "model_type", "dict_type") or _is_missing_body(fault):
        return "the body must be a JSON object, sent with content-type: application/json"
    if fault["type"] == "extra_forbidden":
        return f"{_shown(_param(fault) or '')}: no such field"
    reason = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "literal_error":
        reason = f"expected {fault['ctx']['expected']}"
    param = _param(fault)
    return f"{param}: {reason[:1].lower()}{reason[1:]}" if param else reason


def _is_missing_body(fault: dict[str, Any]) -> bool:
    return bool(fault["type"] == "missing") and tuple(fault["loc"]) == ("body",)


def _shown(text: str) -> str:
    """A client's text for a message: quoted, escaped, cut."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")
