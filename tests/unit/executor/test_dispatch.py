"""Who runs what: requests placed on copies of the model, commands for idle copies only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.core.errors import InternalError
from stage_runtime.core.wave import KvPrefetch, NewRequest, Wave
from stage_runtime.executor.dispatch import Dispatch
from support.builders import RequestBuilder


def wave(number: int, new: str = "", cached: str = "", finished: str = "") -> Wave:
    """A wave of requests with names of one letter."""
    return Wave(
        wave_id=number,
        new=tuple(NewRequest(request=RequestBuilder(name).build()) for name in new),
        cached_ids=tuple(cached),
        finished_ids=tuple(finished),
    )


@pytest.mark.invariant("DIFF-RUNTIME-INV-002")
def test_one_copy_is_sent_the_wave_as_the_scheduler_made_it() -> None:
    run = Dispatch(1).plan(wave(1, new="ab"))
    assert run is not None
    assert run.wave == wave(1, new="ab")
    assert run.places == {"a": 0, "b": 0}


def test_requests_go_to_the_copy_with_the_fewest() -> None:
    run = Dispatch(2).plan(wave(1, new="abc"))
    assert run is not None
    assert run.places == {"a": 0, "b": 1, "c": 0}


def test_a_busy_copy_is_not_sent_more_work() -> None:
    dispatch = Dispatch(1)
    dispatch.plan(wave(1, new="a"))
    assert dispatch.plan(wave(2, cached="a")) is None


def test_a_late_request_reaches_a_busy_copy_once_it_is_idle() -> None:
    dispatch = Dispatch(1)
    dispatch.plan(wave(1, new="a"))
    assert dispatch.plan(wave(2, new="b", cached="a")) is None
    dispatch.idle(0)
    run = dispatch.plan(wave(3, cached="ab"))
    assert run is not None
    assert [envelope.request.request_id for envelope in run.wave.new] == ["b"]
    assert run.wave.cached_ids == ("a",)


def test_an_idle_copy_goes_on_while_another_one_is_busy() -> None:
    dispatch = Dispatch(2)
    dispatch.plan(wave(1, new="ab"))
    dispatch.idle(1)
    run = dispatch.plan(wave(2, cached="ab"))
    assert run is not None
    assert run.wave.cached_ids == ("b",)


def test_key_value_fields_are_refused_and_not_dropped() -> None:
    envelope = NewRequest(request=RequestBuilder("a").build(), kv_metadata={"blocks": 1})
    for told in (Wave(wave_id=1, kv_prefetch=KvPrefetch("a", "elsewhere")), Wave(wave_id=1, new=(envelope,))):
        with pytest.raises(InternalError, match="key/value fields"):
            Dispatch(1).plan(told)


def test_ended_requests_are_told_at_once_also_to_a_busy_copy() -> None:
    dispatch = Dispatch(1)
    dispatch.plan(wave(1, new="ab"))
    run = dispatch.plan(wave(2, cached="b", finished="a"))
    assert run is not None
    assert run.wave == wave(2, finished="a")


def test_a_computed_request_leaves_its_place_to_another() -> None:
    dispatch = Dispatch(2)
    dispatch.plan(wave(1, new="ab"))
    dispatch.computed("b")
    run = dispatch.plan(wave(2, new="c", cached="a"))
    assert run is None  # the second copy has not said that it is idle
    dispatch.idle(1)
    run = dispatch.plan(wave(3, cached="ac"))
    assert run is not None
    assert run.places == {"c": 1}


def test_an_id_that_was_never_sent_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="never sent"):
        Dispatch(1).plan(wave(1, cached="a"))


@given(st.lists(st.tuples(st.sampled_from("aie"), st.integers(0, 5), st.integers(0, 2)), max_size=60))
def test_nothing_is_left_when_all_have_ended(moves: list[tuple[str, int, int]]) -> None:
    """Arrivals, idle copies and endings in any order."""
    dispatch = Dispatch(3)
    live: list[str] = []
    names = iter(f"r{i}" for i in range(100))
    for number, (what, which, copy) in enumerate(moves, 1):
        new, finished = [], []
        if what == "a":
            new = [NewRequest(request=RequestBuilder(next(names)).build())]
        elif what == "i":
            dispatch.idle(copy)
        elif live:
            finished = [live.pop(which % len(live))]
        dispatch.plan(
            Wave(wave_id=number, new=tuple(new), cached_ids=tuple(live), finished_ids=tuple(finished))
        )
        live += [envelope.request.request_id for envelope in new]
    assert dispatch.placed == len(live)
    dispatch.plan(Wave(wave_id=1000, finished_ids=tuple(live)))
    assert dispatch.placed == 0


def test_it_is_busy_until_every_copy_at_work_is_idle() -> None:
    dispatch = Dispatch(2)
    dispatch.plan(wave(1, new="ab"))
    dispatch.idle(0)
    assert dispatch.busy
    dispatch.idle(1)
    assert not dispatch.busy
