"""What is decided at the edge: rates, series of events, patches, restarts of watches, health."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_operator.client.kube import NODES, PODS, STAGES, resource_of
from stage_operator.client.rate import Bucket
from stage_operator.observed.kopf_watches import Restarts
from stage_operator.telemetry.health import Pulse, ailments
from stage_operator.write.apply import digest_of, holds
from stage_operator.write.events import REFRESH_S, SERIES_S, Again, New, Series
from stage_operator.write.status import merge_patch
from support.fake_kube import merged

VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(0, 9), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner)),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES)


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = Bucket(rate=10, burst=3, now=0)
    assert [bucket.take(0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_a_rest_brings_the_burst_back_and_no_more() -> None:
    bucket = Bucket(rate=10, burst=3, now=0)
    for _ in range(3):
        bucket.take(0)
    assert [bucket.take(100) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_nobody_goes_while_the_server_asks_to_wait() -> None:
    bucket = Bucket(rate=10, burst=3, now=0)
    bucket.close(5)
    assert bucket.take(2) == 3
    assert bucket.take(6) == 0


@given(st.lists(st.floats(0, 1), max_size=50))
def test_no_more_requests_go_than_the_rate_allows(pauses: list[float]) -> None:
    bucket = Bucket(rate=10, burst=3, now=0)
    now, goes = 0.0, []
    for pause in pauses:
        now += pause
        goes.append(now + bucket.take(now))
    for n, at in enumerate(goes):
        for m, earlier in enumerate(goes[:n]):
            assert n - m + 1 <= 3 + 10 * (at - earlier) + 1e-6


def test_what_is_told_again_soon_becomes_a_series_that_is_written_now_and_then() -> None:
    series = Series()
    assert series.see(("a",), 0) == New()
    assert series.see(("a",), 1) is None
    assert series.see(("b",), 1) == New()
    assert series.see(("a",), REFRESH_S) == Again(3)
    assert series.see(("a",), REFRESH_S + 1) is None


def test_what_was_not_told_for_long_is_new() -> None:
    series = Series()
    series.see(("a",), 0)
    assert series.see(("a",), SERIES_S + 1) == New()
    series.forget(("a",))
    assert series.see(("a",), SERIES_S + 2) == New()


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_new_status_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(OBJECTS)
def test_a_patch_between_equals_is_empty(same: dict[str, Any]) -> None:
    assert merge_patch(same, same) == {}


@given(OBJECTS, OBJECTS)
def test_an_object_holds_what_it_was_made_from_whatever_was_added(
    wanted: dict[str, Any], added: dict[str, Any]
) -> None:
    assert holds({**added, **wanted}, wanted)


def test_an_object_does_not_hold_another_value_or_a_longer_list() -> None:
    assert not holds({"a": 1}, {"a": 2})
    assert not holds({"a": [1, 2]}, {"a": [1]})
    assert not holds({}, {"a": None})
    assert holds({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]})


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})


def test_watches_that_end_again_and_again_are_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.wait_s(float(n)) for n in range(10)]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30, None]


def test_watches_that_end_now_and_then_are_begun_again_for_ever() -> None:
    restarts = Restarts()
    assert all(restarts.wait_s(n * 120.0) is not None for n in range(100))


def test_a_healthy_process_has_no_ailments() -> None:
    assert ailments(Pulse(lag_s=0.1, oldest_s=1, longest_s=1, quiet_s=90)) == ()


@pytest.mark.parametrize("field", ["lag_s", "oldest_s", "longest_s", "quiet_s"])
def test_each_ailment_is_named(field: str) -> None:
    pulse = Pulse(**{**dict.fromkeys(("lag_s", "oldest_s", "longest_s", "quiet_s"), 0.0), field: 10_000.0})
    assert len(ailments(pulse)) == 1


def test_paths_are_those_of_the_api() -> None:
    assert PODS.path("ns", "p") == "/api/v1/namespaces/ns/pods/p"
    assert PODS.path(None) == "/api/v1/pods"
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    stages = "/apis/omnistage.io/v1alpha1/namespaces/ns/diffusionstages"
    assert STAGES.path("ns", "s", "status") == f"{stages}/s/status"
    assert resource_of("policy/v1", "PodDisruptionBudget").path("a") == (
        "/apis/policy/v1/namespaces/a/poddisruptionbudgets"
    )
    with pytest.raises(KeyError):
        resource_of("v1", "Endpoints")
