"""Objects that take little room."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stage_operator.observed.interned import compact
from stage_operator.observed.slim import slim_pod

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=30)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=30), inner)),
    max_leaves=20,
)


@given(JSON)
def test_a_compact_object_is_equal(value: Any) -> None:
    assert compact(value) == value


def test_objects_that_came_apart_share_their_short_texts() -> None:
    one, other = (compact(json.loads('{"lastTransitionTime": "2026-01-01T00:00:00Z"}')) for _ in range(2))
    assert next(iter(one)) is next(iter(other))
    assert one["lastTransitionTime"] is other["lastTransitionTime"]


def test_details_of_a_pod_that_nobody_reads_are_no_news() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    container = {"name": "stage", "state": {"running": {}}}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [container]}
    more = {
        **status,
        "hostIP": "10.0.0.1",
        "conditions": [{**ready, "lastProbeTime": None}],
        "containerStatuses": [{**container, "imageID": "sha256:0", "started": True}],
    }
    slim = [slim_pod({"metadata": {"name": "p"}, "status": each}) for each in (status, more)]
    assert slim[0] == slim[1]
    assert slim[0]["status"] == status
