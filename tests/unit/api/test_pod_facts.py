"""What a pod tells is cut to what a status holds; what it doesn't tell as it should, it doesn't tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api.decode import decode
from stage_api.pod_facts import MAX_COMPONENTS, MAX_REASON, MAX_WORD, PodFacts
from stage_api.status import FactsStatus


def models(**capability: Any) -> dict[str, Any]:
    found = {
        "batches": True,
        "early_stop": True,
        "resumable": True,
        "reason": "",
        "components": [],
        **capability,
    }
    return {"data": [{"id": "m", "pipeline": "P", "modality": "image", "capability": found}]}


def test_what_is_too_long_is_cut() -> None:
    part = {"name": "n" * 1000, "merges": False, "reason": "r" * 1000}
    found = PodFacts.of(models(reason="r" * 10_000, components=[part] * 1000))
    assert found is not None
    capability = found.capability
    assert len(capability.reason) == MAX_REASON
    assert len(capability.components) == MAX_COMPONENTS
    assert (len(capability.components[0].name), len(capability.components[0].reason)) == (
        MAX_WORD,
        MAX_REASON,
    )
    status = FactsStatus(capability=capability, revision="r", replica=0)
    assert decode(FactsStatus, status.to_json()) == status


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": []},
        {"data": "x"},
        {"data": [7]},
        {"data": [{}]},
        models(batches=None),
        models(batches="yes"),
    ],
    ids=str,
)
def test_facts_that_are_not_there_are_none(body: dict[str, Any]) -> None:
    assert PodFacts.of(body) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "name", "merges", "reason", "capability", "components"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_whatever_a_pod_answers_is_told_soundly_or_not_at_all(
    reason: Any, components: Any, batches: Any
) -> None:
    for body in (models(reason=reason, components=components), models(batches=batches), {"data": components}):
        if (found := PodFacts.of(body)) is not None:
            found.to_json()
            str(found.to_json()).encode()
