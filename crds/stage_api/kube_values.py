"""Values as Kubernetes spells them: quantities, counts in percent, labels, references by name."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stage_api.base import Contract

MAX_QUANTITY_CHARS: Final = 32
MAX_COUNT: Final = 1000
# NB: of an exponent as long as one likes nobody can tell whether it is larger than another.
_QUANTITY: Final = r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,3})?$"
QUANTITY_PATTERN: Final = _QUANTITY
_PERCENT: Final = "^(100|[1-9]?[0-9])%$"
_NANO: Final = 1000**3
_EXPONENT_CHARS: Final = 3  # with its sign; of larger ones the number alone would fill memory
_SPELLED: Final = (
    ("", Fraction(1)),
    *((suffix, Fraction(1000) ** n) for n, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)),
    *(
        (suffix, Fraction(1024) ** n)
        for n, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
    ),
    *((suffix, Fraction(1, 1000**n)) for n, suffix in enumerate(("m", "u", "n"), start=1)),
)
_SUFFIXES: Final = {
    **{suffix: Decimal(1024) ** n for n, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1000) ** -n for n, suffix in enumerate(("m", "u", "n"), start=1)},
}


def _int_or_string(value: Any, pattern: str, most: int | None) -> int | float | str:
    """An integer from 0, or text of a pattern. Raises: PydanticCustomError.

    Without a `most`, any number from 0.
    """
    if most is None and isinstance(value, float) and value >= 0 and re.fullmatch(pattern, str(value)):
        return value
    if isinstance(value, str) and len(value) <= MAX_QUANTITY_CHARS and re.fullmatch(pattern, value):
        return value
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= 0 and (most is None or value <= most):
        return int(value)
    raise PydanticCustomError("int_or_string", "neither a number nor such a text")


Quantity = Annotated[
    int | float | str,
    PlainValidator(lambda value: _int_or_string(value, _QUANTITY, None)),
    # Of no type: what has one takes numbers or text, and of numbers in `x-kubernetes-int-or-string` whole ones only.
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,
            "pattern": _QUANTITY,
            "maxLength": MAX_QUANTITY_CHARS,
            "minimum": 0,
            "x-expected": "a quantity such as 4, 0.5, 500m or 16Gi",
        }
    ),
]
"""An amount of a resource, as a Pod takes it."""

IntOrPercent = Annotated[
    int | str,
    PlainValidator(lambda value: _int_or_string(value, _PERCENT, MAX_COUNT)),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": _PERCENT,
            "maxLength": MAX_QUANTITY_CHARS,
            "minimum": 0,
            "maximum": MAX_COUNT,
            "x-expected": f"an integer 0..{MAX_COUNT} or a percentage such as 25%",
        }
    ),
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


def _without_nulls(value: Any) -> Any:
    """A map without what is null in it, as the API server prunes it."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if inner is not None}


PRUNED: Final = BeforeValidator(_without_nulls)
"""Lets a null in a map pass for a key that isn't there."""

Labels = Annotated[dict[str, LabelValue], Field(max_length=16), PRUNED]


class NameRef(Contract):
    """An object in the stage's namespace."""

    name: ObjectName = Field(description="Name of the object.")


def amount(quantity: int | float | str) -> Decimal:
    """A quantity as a number of its base unit (bytes, cores)."""
    text = str(quantity)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def canonical(quantity: int | float | str) -> int | str:
    """The shortest spelling of a quantity: equal for equal amounts. Below a billionth it is rounded up, as Kubernetes
    does. One too large or small to be of anything stays as it is.
    """
    as_written = quantity if isinstance(quantity, int) else str(quantity)
    number, factor = str(quantity), Fraction(1)
    for suffix, size in _SPELLED[1:]:
        if number.endswith(suffix):
            number, factor = number.removesuffix(suffix), size
            break
    _, _, exponent = number.lower().partition("e")
    if len(exponent) > _EXPONENT_CHARS:
        return as_written
    exact = Fraction(ceil(Fraction(number) * factor * _NANO), _NANO)
    told = [f"{exact / size}{suffix}" for suffix, size in _SPELLED if (exact / size).denominator == 1]
    shortest = min(told, key=len)
    if len(shortest) > MAX_QUANTITY_CHARS:
        return as_written
    return int(shortest) if shortest.isdecimal() else shortest


def is_quantity(value: object) -> bool:
    """Whether a value is one."""
    try:
        _int_or_string(value, _QUANTITY, None)
    except PydanticCustomError:
        return False
    return True


def share(value: int | str, of: int, *, up: bool) -> int:
    """A number of replicas out of `of`; a percentage is rounded `up` or down."""
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * of
    return -(-exact // 100) if up else exact // 100
