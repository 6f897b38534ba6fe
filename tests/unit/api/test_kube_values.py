"""Quantities, shares and what of them is the same."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from stage_api.kube_values import IntOrPercent, Quantity, amount, canonical, share


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
        (0.5, "0.5"),
        (1e-07, "0.0000001"),
        (".5", "0.5"),
        ("5.", "5"),
        (".5Gi", "536870912"),
        ("+1", "1"),
        ("+1.5e+3", "1500"),
        ("1e999", "1e999"),
        ("1e-999", "1e-999"),
    ],
)
def test_a_quantity_is_a_number_of_its_unit(quantity: int | float | str, number: str) -> None:
    assert TypeAdapter(Quantity).validate_python(quantity) == quantity
    assert amount(quantity) == Decimal(number)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "Gi",
            ".",
            "+",
            ".Gi",
            "1..5",
            "1.5.",
            "-1",
            "-.5",
            "++1",
            "1 Gi",
            "1" * 33,
            "4\n",
            "1K",
            "1e",
            "1e3Gi",
        ),
        *("1e1000", "1e-1000", "1E+99999999999999999999", "1e-99999999999999999999"),
        *(-1, -0.5, True, [1], None),
    ],
)
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


@pytest.mark.parametrize(
    ("equal", "shortest"),
    [
        ((1, "1", "1000m", 1.0, "1.0", "1e0", "1000000u"), 1),
        ((0.5, "0.5", "500m", "5e-1", ".5", "+.5", "+500m"), "500m"),
        ((5, "5.", "+5", "5.e0"), 5),
        (("1Gi", "1024Mi", "1048576Ki", 1073741824, "1073741824"), "1Gi"),
        (("1500Mi", "1536000Ki"), "1500Mi"),
        (("1.5Gi", "1536Mi"), "1536Mi"),
        (("2G", "2000M", 2000000000, "2e9"), "2G"),
        (("1T", "1000G"), "1T"),
        (("1k", 1000, "1e3"), "1k"),
        ((0, "0", "0Gi", "0m"), 0),
        (("0.1n", "1n", "0.0000000001"), "1n"),
        (("16Ei",), "16Ei"),
    ],
)
def test_equal_quantities_have_one_shortest_spelling(
    equal: tuple[int | float | str, ...], shortest: int | str
) -> None:
    assert {canonical(quantity) for quantity in equal} == {shortest}


@given(st.integers(0, 10**24), st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_the_shortest_spelling_is_as_much_and_its_own(number: int, suffix: str) -> None:
    spelled = f"{number}{suffix}"
    shortest = canonical(spelled)
    assert Fraction(amount(shortest)) == Fraction(amount(spelled))
    assert canonical(shortest) == shortest
    assert len(str(shortest)) <= len(spelled)
    assert TypeAdapter(Quantity).validate_python(shortest) == shortest


@pytest.mark.parametrize("quantity", ["1e9999999999", "1e-9999999999", "1E12345", "1e99"])
def test_what_is_too_large_or_small_to_be_of_anything_stays_as_it_is(quantity: str) -> None:
    assert canonical(quantity) == quantity
