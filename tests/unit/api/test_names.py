"""Names that are derived from others are valid, unique and the same wherever they are used."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api import names

LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_PART = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("text", ["shapes", "Org.My_Model", "a" * 63, "1"])
def test_a_text_that_is_a_label_value_stays_as_it_is(text: str) -> None:
    assert names.label_value(text) == text


@pytest.mark.parametrize("text", ["Org/My.Model_v1.0-", "模型/甲", "a" * 200, "", "-", "a" * 54 + "-" * 20])
def test_any_other_text_becomes_a_valid_label_value(text: str) -> None:
    assert LABEL.fullmatch(names.label_value(text))


@given(st.text(max_size=300))
def test_label_value_is_valid_for_any_text(text: str) -> None:
    assert LABEL.fullmatch(names.label_value(text))


def test_texts_with_the_same_slug_get_different_label_values() -> None:
    assert names.label_value("org/model") != names.label_value("org:model")
    assert names.label_value("a" * 200) != names.label_value("a" * 201)


def test_names_of_the_longest_stage_fit_into_one_part_of_a_dns_name() -> None:
    stage = "s" * names.MAX_NAME
    assert DNS_PART.fullmatch(names.pod_name(stage, 999, 9_999_999_999, 1023))
    assert DNS_PART.fullmatch(names.ranks_service(stage))


def test_the_rendezvous_is_at_the_first_pod_of_the_epoch() -> None:
    address = names.master_addr("flux", "art", replica=2, epoch=7)
    assert address == f"{names.pod_name('flux', 2, 7, 0)}.{names.ranks_service('flux')}.art.svc"


def test_two_lives_of_a_replica_share_no_name() -> None:
    assert names.pod_name("flux", 0, 1, 0) != names.pod_name("flux", 0, 2, 0)


def test_every_shared_name_is_spelt_once() -> None:
    spelt = [value for key, value in vars(names).items() if key.startswith(("ENV_", "LABEL_", "ANNOTATION_"))]
    assert len(spelt) == len(set(spelt))
