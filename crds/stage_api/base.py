"""What every model of the contract has in common: frozen, strict, camelCase, lawful.

A `Law` is a rule over several fields, stated once in Python and once in CEL, side by side, so
that a manifest is judged alike on a laptop and by the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from stage_api.errors import Fault

UNREAD_RULES: Final = "x-unread-rules"  # of a schema: the laws that the API server can't read
LAW_BROKEN: Final = "law_broken"  # type of the pydantic error whose context carries the faults


Limit = int | tuple[str, ...]
"""What a version can execute of a field: a number up to this, a switch at no other position, one of these words."""


@dataclass(frozen=True, slots=True)
class Law:
    """One rule over the fields `reads` of the model that carries it.

    `check` takes those fields' values in that order and gives the fault, or None. `cel` is the same rule for the API
    server (`self` is the carrying model), or None where it can't read the fields and the operator alone says it.
    `message` is what is answered, and `field` the field it blames, by its path from the carrying model; empty, the
    model as a whole.
    """

    reads: tuple[str, ...]
    cel: str | None
    message: str
    check: Callable[..., Fault | None]
    field: str = ""


class Contract(BaseModel):
    """Base of all models. A null means absent, as it does for the API server."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    laws: ClassVar[tuple[Law, ...]] = ()
    executable: ClassVar[Mapping[str, Limit]] = {}
    """Of a section of the spec: what this version can execute of it, by path. What isn't listed has no limit."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = {name for key, field in cls.model_fields.items() for name in (key, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @model_validator(mode="after")
    def _keep_laws(self) -> Self:
        checked = (law.check(*(getattr(self, name) for name in law.reads)) for law in self.laws)
        if faults := tuple(fault for fault in checked if fault):
            text = "; ".join(str(fault) for fault in faults)
            raise PydanticCustomError(LAW_BROKEN, "{text}", {"text": text, "faults": faults})
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        """The model's JSON schema with its laws as CEL."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        for law in cls.laws:
            where = {"fieldPath": f".{law.field}"} if law.field else {}
            if law.cel is None:
                schema.setdefault(UNREAD_RULES, []).append({"message": law.message, **where})
            else:
                rule = {"rule": law.cel, "message": law.message, **where}
                schema.setdefault("x-kubernetes-validations", []).append(rule)
        return schema

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with the manifest's spelling; what was left out stays out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE: Final = BeforeValidator(_whole)
"""Lets 8.0 pass as 8, the same number in JSON. NB: must stand after the bounds of an `Annotated`,
or the JSON schema loses them."""
