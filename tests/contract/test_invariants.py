"""Every invariant of docs/invariants.md is known, and those that are built have tests that say so."""

from __future__ import annotations

from functools import cache

import pytest

import invariants

FAMILIES = {"DIFF-RUNTIME": 5, "DIFF-MODEL": 4, "BATCH": 4, "PARALLEL": 4, "OFFLOAD": 4}
IDS = [f"{family}-INV-{n:03}" for family, count in FAMILIES.items() for n in range(1, count + 1)]


@cache
def marks() -> dict[str, set[str]]:
    return invariants.marked_tests()


def test_the_table_has_every_invariant_once_and_no_other() -> None:
    assert [invariant_id for invariant_id, _ in invariants.rows()] == IDS


def test_no_test_names_an_unknown_invariant() -> None:
    unknown = {test: ids - set(IDS) for test, ids in marks().items() if ids - set(IDS)}
    assert unknown == {}


@pytest.mark.parametrize(("invariant_id", "count"), invariants.rows())
def test_a_row_counts_the_tests_that_carry_its_mark(invariant_id: str, count: int) -> None:
    carriers = sorted(test for test, ids in marks().items() if invariant_id in ids)
    assert count == len(carriers), f"run make generate; these carry {invariant_id}: {carriers}"
