"""Values as Kubernetes spells them: quantities, counts in percent, labels, references by name."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stage_api.base import Contract

MAX_QUANTITY_CHARS: Final = 32
MAX_COUNT: Final = 1000
_QUANTITY: Final = r"^[0-9]+([.][0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"
_PERCENT: Final = "^(100|[1-9]?[0-9])%$"
_SUFFIXES: Final = {
    **{suffix: Decimal(1024) ** n for n, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1000) ** -n for n, suffix in enumerate(("m", "u", "n"), start=1)},
}


def _int_or_string(value: Any, pattern: str, most: int | None) -> int | str:
    """An integer from 0, or text of a pattern. Raises: PydanticCustomError."""
    if isinstance(value, str) and len(value) <= MAX_QUANTITY_CHARS and re.fullmatch(pattern, value):
        return value
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= 0 and (most is None or value <= most):
        return int(value)
    raise PydanticCustomError("int_or_string", "neither a number nor such a text")


def _schema(pattern: str, expected: str, most: int | None = None) -> WithJsonSchema:
    bounds = {"minimum": 0} if most is None else {"minimum": 0, "maximum": most}
    return WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": pattern,
            "maxLength": MAX_QUANTITY_CHARS,
            "x-expected": expected,
            **bounds,
        }
    )


Quantity = Annotated[
    int | str,
    PlainValidator(lambda value: _int_or_string(value, _QUANTITY, None)),
    _schema(_QUANTITY, "a quantity such as 4, 500m or 16Gi"),
]
"""An amount of a resource."""

IntOrPercent = Annotated[
    int | str,
    PlainValidator(lambda value: _int_or_string(value, _PERCENT, MAX_COUNT)),
    _schema(_PERCENT, f"an integer 0..{MAX_COUNT} or a percentage such as 25%", MAX_COUNT),
]
"""A number of replicas, or a share of them."""

ObjectName = Annotated[
    str,
    Field(
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        json_schema_extra={"x-expected": "the name of a Kubernetes object"},
    ),
]
"""Name of an object in the stage's namespace."""

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=16)]


class NameRef(Contract):
    """An object in the stage's namespace."""

    name: ObjectName = Field(description="Name of the object.")


def amount(quantity: int | str) -> Decimal:
    """A quantity as a number of its base unit (bytes, cores)."""
    text = str(quantity)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def share(value: int | str, of: int, *, up: bool) -> int:
    """A number of replicas out of `of`; a percentage is rounded `up` or down."""
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * of
    return -(-exact // 100) if up else exact // 100
