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


@pytest.mark.parametrize(("invariant_id", "tests"), invariants.rows())
def test_the_tests_that_a_row_names_exist_and_carry_its_mark(invariant_id: str, tests: list[str]) -> None:
    for test in tests:
        assert test in marks(), f"{invariant_id} names {test}, which does not exist"
        assert invariant_id in marks()[test], f"{test} lacks @pytest.mark.invariant({invariant_id!r})"


def test_an_invariant_that_tests_claim_is_not_called_unbuilt() -> None:
    claimed = {id_ for ids in marks().values() for id_ in ids}
    unbuilt = [invariant_id for invariant_id, tests in invariants.rows() if not tests]
    assert [id_ for id_ in unbuilt if id_ in claimed] == [], "run make generate"
