"""Quantities, shares and what of them is the same."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import TypeAdapter, ValidationError

from stage_api.kube_values import IntOrPercent, Quantity, amount, share


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        (4, "4"),
        ("4", "4"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        ("16Gi", "17179869184"),
        ("2k", "2000"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("2E", "2000000000000000000"),
        ("100n", "0.0000001"),
    ],
)
def test_a_quantity_is_a_number_of_its_unit(quantity: int | str, number: str) -> None:
    assert TypeAdapter(Quantity).validate_python(quantity) == quantity
    assert amount(quantity) == Decimal(number)


@pytest.mark.parametrize("value", ["", "Gi", "1.", ".5", "-1", -1, 1.5, True, None, "1 Gi", "1" * 33, "4\n"])
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Quantity).validate_python(value)


@pytest.mark.parametrize("value", ["101%", "01%", "%", "5", "-5%", -1, 1001, True, 0.5])
def test_what_is_neither_a_count_nor_a_percentage_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(IntOrPercent).validate_python(value)


@pytest.mark.parametrize(
    ("value", "of", "down", "up"), [("25%", 3, 0, 1), ("50%", 4, 2, 2), ("0%", 9, 0, 0), (3, 2, 3, 3)]
)
def test_a_percentage_is_rounded_as_asked(value: int | str, of: int, down: int, up: int) -> None:
    assert (share(value, of, up=False), share(value, of, up=True)) == (down, up)
