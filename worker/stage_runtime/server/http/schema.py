"""What the wires of all modalities share: how a body is read, and the answers that are no modality's own."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

BETWEEN_FIELDS: Final = "between_fields"
"""Type of a fault whose context names the field to blame."""
IN_WORDS: Final = "in_words"
"""Type of a fault whose text is ours and stands as it is."""


class Body(BaseModel):
    """Base of the bodies that clients send: strict, and nothing in them is ignored. Null means absent."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def between_fields(field: str, reason: str) -> PydanticCustomError:
    """A fault between fields, blamed on one of them."""
    return PydanticCustomError(BETWEEN_FIELDS, "{reason}", {"reason": reason, "field": field})


def in_words(reason: str) -> PydanticCustomError:
    """A fault of one field. `reason` must not repeat what the client sent."""
    return PydanticCustomError(IN_WORDS, "{reason}", {"reason": reason})


def unsupported(why: str) -> BeforeValidator:
    """Refuses any value of a field that others' servers have and this one hasn't. For a field of type None."""

    def refuse(value: Any) -> None:
        if value is not None:
            raise in_words(f"not supported: {why}")

    return BeforeValidator(refuse)


class ModelCard(BaseModel):
    """A model as OpenAI describes one, with what this stage knows of it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["omnistage"] = "omnistage"
    pipeline: str
    modality: str
    defaults: dict[str, Any]
    limits: dict[str, Any]
    capability: dict[str, Any] | None


class ModelList(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """What went wrong: for people, by kind, the field to blame, for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail
