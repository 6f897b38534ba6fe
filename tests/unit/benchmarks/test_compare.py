"""Two checkouts' figures: what counts as alike, and which way is worse."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.compare import compare, only_one_has, table


def _rounds(*values: float, what: str = "close", ratio: float | None = None, **more: Any) -> list[Any]:
    """A run for each value; `ratio` is the first one's, and the others' change as the value does."""
    row = {"unit": "s", "timed": True, "at_least": False, **more}
    return [{what: {**row, "value": value, "ratio": ratio and ratio * value / values[0]}} for value in values]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((0.9, 1.0, 1.2), "within its spread"),
        ((1.1, 1.4, 1.3), "within its spread"),  # one as slow as their slowest is enough
        ((1.11, 1.4, 1.3), "WORSE"),
        ((1.111, 1.113, 1.112), "WORSE"),
        ((0.5, 0.6, 0.89), "better"),
    ],
)
def test_a_value_is_alike_while_the_spreads_of_both_meet(ours: tuple[float, ...], verdict: str) -> None:
    (found,) = compare(_rounds(*ours), _rounds(0.9, 1.0, 1.1))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(1.0, "within 3%"), (1.029, "within 3%"), (0.971, "within 3%"), (1.031, "WORSE"), (0.969, "better")],
)
def test_a_wall_ratio_is_alike_within_three_per_cent(ours: float, verdict: str) -> None:
    ratio, _ = compare(_rounds(*[1.0] * 5, ratio=ours), _rounds(*[1.0] * 5, ratio=1.0))
    assert (ratio.wall_ratio, ratio.verdict) == (True, verdict)


def test_values_that_hardly_spread_at_all_are_alike_within_three_per_cent() -> None:
    (found,) = compare(_rounds(1.011, 1.012, 1.013), _rounds(0.999, 1.0, 1.001))
    assert found.verdict == "within 3%"


def test_a_wall_ratio_is_judged_by_the_middle_of_the_rounds_and_not_by_one_of_them() -> None:
    ratio, _ = compare(_rounds(1, 1.01, 9, ratio=1.0), _rounds(1, 1, 1, ratio=1.0))
    assert ratio.verdict == "within 3%"


def test_a_row_with_a_wall_ratio_is_compared_by_its_value_too() -> None:
    """Both sides of a ratio may have become slower."""
    ratio, value = compare(_rounds(2, 2, 2, ratio=1.0), _rounds(1, 1, 1, ratio=1.0))
    assert (ratio.verdict, value.verdict) == ("within 3%", "WORSE")


def test_more_of_what_should_be_at_least_something_is_better_but_more_time_is_not() -> None:
    ratio, value = compare(
        _rounds(2, 2, 2, ratio=1.6, at_least=True), _rounds(1, 1, 1, ratio=1.4, at_least=True)
    )
    assert (ratio.verdict, value.verdict) == ("better", "WORSE")


@pytest.mark.parametrize("ours", [7.0, 9.0])
def test_an_exact_count_that_changes_either_way_is_worse(ours: float) -> None:
    (found,) = compare(_rounds(ours, ours, timed=False), _rounds(8.0, 8.0, timed=False))
    assert found.verdict == "WORSE"


def test_figures_of_nothing_have_no_quotient_and_are_compared_all_the_same() -> None:
    (same,) = compare(_rounds(0.0, 0.0), _rounds(0.0, 0.0))
    (more,) = compare(_rounds(0.2, 0.3), _rounds(0.0, 0.0))
    assert (same.quotients, same.verdict, more.verdict) == ((), "within its spread", "WORSE")
    assert "close" in table([same, more], verdicts=True)


def test_what_only_one_of_them_measures_is_named_and_compared_with_nothing() -> None:
    ours, theirs = _rounds(1, 1, what="new"), _rounds(1, 1, what="old")
    assert compare(ours, theirs) == []
    assert only_one_has(ours, theirs) == ["new", "old"]


def test_rounds_that_are_not_as_many_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds beside 3"):
        compare(_rounds(1, 1), _rounds(1, 1, 1))
