"""The ledger of what ranks have said: pairs asynchronous outputs, drops what comes too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.core.outcome import (
    Completed,
    Computed,
    Failed,
    Modality,
    Outcome,
    Output,
    Progressed,
)
from stage_runtime.executor.ledger import BadReply, Ledger
from stage_runtime.ipc.messages import OutputReady, Parcel, ShmRef, Ticked

OUTPUT = Output(modality=Modality.IMAGE, data=b"", shape=(1, 1, 3), dtype="uint8")


def completed(request_id: str) -> Completed:
    """A result whose bytes are elsewhere."""
    return Completed(request_id, OUTPUT, 4)


def parcel(request_id: str, offset: int = 0, *, preview: bool = False) -> Parcel:
    """Where the bytes of an output are."""
    return Parcel(request_id, preview, ShmRef("segment", offset, 3))


def ticked(wave_id: int, *outcomes: Outcome, parcels: tuple[Parcel, ...] = ()) -> Ticked:
    """What rank 0 says after a tick."""
    return Ticked(rank=0, wave_id=wave_id, outcomes=outcomes, parcels=parcels)


def ready(wave_id: int, outcome: Outcome, at: Parcel | None = None) -> OutputReady:
    """What rank 0's packer says."""
    return OutputReady(rank=0, wave_id=wave_id, outcome=outcome, parcel=at)


def ledger_with(*request_ids: str, wave_id: int = 1) -> Ledger:
    """A ledger of requests that entered with one wave."""
    ledger = Ledger()
    ledger.enter(request_ids, wave_id)
    return ledger


@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
@pytest.mark.invariant("BATCH-INV-004")
def test_a_batch_is_split_by_request_id() -> None:
    ledger = ledger_with("a", "b")
    at = parcel("b")
    content = ledger.ticked(ticked(1, completed("b"), Progressed("a", 1, 4), parcels=(at,)))
    assert [(d.outcome.request_id, d.parcel) for d in content.deliveries] == [("b", at), ("a", None)]


def test_a_preview_and_a_result_have_parcels_of_their_own() -> None:
    ledger = ledger_with("a", "b")
    preview = parcel("a", 1, preview=True)
    content = ledger.ticked(
        ticked(1, Progressed("a", 1, 4, OUTPUT, 0), completed("b"), parcels=(preview, parcel("b", 2)))
    )
    assert [d.parcel.ref.offset for d in content.deliveries if d.parcel] == [1, 2]


def test_an_output_is_delivered_after_its_request_is_computed() -> None:
    ledger = ledger_with("a")
    first = ledger.ticked(ticked(1, Computed("a")))
    second = ledger.ready(ready(1, completed("a"), parcel("a")))
    assert [d.outcome for d in first.deliveries] == [Computed("a")]
    assert [d.outcome for d in second.deliveries] == [completed("a")]


def test_an_output_that_overtakes_waits_until_its_request_is_computed() -> None:
    ledger = ledger_with("a")
    assert ledger.ready(ready(1, completed("a"), parcel("a"))).deliveries == ()
    content = ledger.ticked(ticked(1, Computed("a")))
    assert [d.outcome for d in content.deliveries] == [Computed("a"), completed("a")]
    assert content.deliveries[1].parcel == parcel("a")


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_an_output_nobody_wants_any_more_is_freed() -> None:
    ledger = ledger_with("a")
    ledger.ticked(ticked(1, Computed("a")))
    ledger.forget(["a"])
    content = ledger.ready(ready(1, completed("a"), parcel("a")))
    assert content.deliveries == ()
    assert content.dropped == (parcel("a").ref,)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_an_output_that_overtook_is_freed_with_its_request() -> None:
    ledger = ledger_with("a")
    ledger.ready(ready(1, completed("a"), parcel("a")))
    assert ledger.forget(["a"]) == (parcel("a").ref,)
    assert len(ledger) == 0


def test_the_bytes_of_a_dropped_request_s_preview_are_freed() -> None:
    ledger = ledger_with("a")
    ledger.forget(["a"])
    at = parcel("a", preview=True)
    content = ledger.ticked(ticked(1, Progressed("a", 1, 4, OUTPUT, 0), parcels=(at,)))
    assert content.dropped == (at.ref,)


@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
def test_a_late_output_is_not_taken_for_that_of_a_later_request_under_the_same_id() -> None:
    ledger = ledger_with("a", wave_id=1)
    ledger.forget(["a"])
    ledger.enter(["a"], 5)
    late = ledger.ready(ready(1, completed("a"), parcel("a")))
    assert (late.deliveries, late.dropped) == ((), (parcel("a").ref,))
    assert ledger.ticked(ticked(4, Progressed("a", 3, 4))).deliveries == ()
    assert len(ledger.ticked(ticked(5, Progressed("a", 1, 4))).deliveries) == 1


def test_a_failure_to_pack_is_an_output_too() -> None:
    ledger = ledger_with("a")
    ledger.ticked(ticked(1, Computed("a")))
    content = ledger.ready(ready(1, Failed("a", "no room")))
    assert [d.outcome for d in content.deliveries] == [Failed("a", "no room")]


@pytest.mark.parametrize(
    "say",
    [
        lambda ledger: (
            ledger.ready(ready(1, completed("a"))),
            ledger.ready(ready(1, completed("a"))),
        ),
        lambda ledger: ledger.ready(ready(1, Progressed("a", 1, 4))),
        lambda ledger: (
            ledger.ticked(ticked(1, Computed("a"))),
            ledger.ticked(ticked(1, Progressed("a", 2, 4))),
        ),
    ],
    ids=["an output twice", "progress as an output", "work on a computed request"],
)
def test_what_no_rank_can_say_is_a_bad_reply(say: object) -> None:
    assert callable(say)
    with pytest.raises(BadReply):
        say(ledger_with("a"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "computed", "ready", "forget"]), st.integers(0, 3)), max_size=80
    )
)
@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_every_parcel_is_delivered_or_freed_once_and_nothing_is_left_at_rest(
    moves: list[tuple[str, int]],
) -> None:
    """Halves of outputs in any order, with requests that are dropped at any time and ids that are used again."""
    ledger = Ledger()
    entered: dict[str, int] = {}
    said: dict[str, set[str]] = {}
    sent, seen = 0, []
    for wave_id, (what, which) in enumerate(moves, 1):
        name = f"r{which}"
        if what == "enter" and name not in entered:
            ledger.enter([name], wave_id)
            entered[name], said[name] = wave_id, set()
        elif what == "forget":
            seen += [ref.offset for ref in ledger.forget([name])]
            entered.pop(name, None)
        elif what != "enter" and name in said and what not in said[name]:
            said[name].add(what)
            wave = entered.get(name, wave_id)
            if what == "computed":
                ledger_says = ledger.ticked(ticked(wave, Computed(name)))
            else:
                sent += 1
                ledger_says = ledger.ready(ready(wave, completed(name), parcel(name, sent)))
            seen += [d.parcel.ref.offset for d in ledger_says.deliveries if d.parcel]
            seen += [ref.offset for ref in ledger_says.dropped]
    seen += [ref.offset for ref in ledger.forget(list(entered))]
    assert sorted(seen) == list(range(1, sent + 1))
    assert len(ledger) == 0
