"""Messages survive the way to bytes and back; what is no message is told, and never as an error of a library."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.core.capability import Capability, ComponentCapability
from stage_runtime.core.control import (
    Health,
    Invoke,
    Outstanding,
    Pause,
    ProfileStart,
    ProfileStop,
    Resume,
    Sleep,
    StopEarly,
    Wake,
)
from stage_runtime.core.error_codec import Raised
from stage_runtime.core.errors import InternalError
from stage_runtime.core.outcome import (
    Aborted,
    Completed,
    Computed,
    Failed,
    Modality,
    Output,
    PhaseSeconds,
    Progressed,
)
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.core.wave import KvPrefetch, NewRequest, Wave
from stage_runtime.ipc.codec import BadMessage, attach, decode_command, decode_reply, detach, encode
from stage_runtime.ipc.messages import (
    INLINE_BYTES,
    Answered,
    Ask,
    Command,
    Dying,
    Hello,
    Meet,
    OutputReady,
    Parcel,
    Ready,
    Reply,
    Run,
    Serving,
    Setup,
    ShmRef,
    Starting,
    Stop,
    Ticked,
)

counts = st.integers(0, 2**31)
int64 = st.integers(-(2**63), 2**64 - 1)
seconds = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=12)
values = st.none() | st.booleans() | int64 | st.floats(allow_nan=False) | names
few = {"max_size": 3}


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, **few).map(tuple)


outputs = st.builds(
    Output,
    modality=st.sampled_from(Modality),
    data=st.binary(max_size=64),
    shape=tuples(counts),
    dtype=st.sampled_from(["uint8", "float32", "bfloat16"]),
    sample_rate=st.none() | counts,
)
phases = st.builds(PhaseSeconds, prepare=seconds, denoise=seconds, decode=seconds)
failures = st.builds(Failed, names, names, st.integers(400, 599), names, st.none() | names)
outcomes = st.one_of(
    st.builds(Progressed, names, counts, counts, st.none() | outputs, st.none() | counts),
    st.builds(Completed, names, outputs, counts, st.none() | phases),
    st.builds(Computed, names),
    st.builds(Aborted, names),
    failures,
)
requests = st.builds(
    Request,
    request_id=names,
    arguments=st.dictionaries(names, values, **few),
    key=st.builds(BatchKey, tuples(st.tuples(names, values))),
    seed=int64,
    steps=counts,
    pixels=counts,
    generator_state=st.none() | st.binary(max_size=64),
    preview_steps=tuples(counts),
)
waves = st.builds(
    Wave,
    wave_id=counts,
    new=tuples(
        st.builds(NewRequest, request=requests, kv_metadata=st.none() | st.dictionaries(names, int64, **few))
    ),
    cached_ids=tuples(names),
    finished_ids=tuples(names),
    kv_prefetch=st.none() | st.builds(KvPrefetch, names, names),
)
controls = st.one_of(
    st.builds(StopEarly, names),
    st.sampled_from([Outstanding(), Pause(), Resume(), Sleep(1), Sleep(2), Wake(), ProfileStop(), Health()]),
    st.builds(ProfileStart, names),
    st.builds(Invoke, names, st.dictionaries(names, values, **few)),
)
places = st.tuples(names, st.integers(0, 65535))
commands = st.one_of(
    st.builds(Setup, config=st.binary(max_size=64), epoch=counts),
    st.builds(Meet, places),
    st.builds(Run, wave=waves, places=st.dictionaries(names, counts, **few)),
    st.builds(Ask, counts, controls),
    st.just(Stop()),
)
refs = st.builds(ShmRef, names, counts, counts, counts)
parcels = st.builds(Parcel, names, st.booleans(), refs)
components = st.builds(
    ComponentCapability, name=names, merges=st.booleans(), reason=names, ragged=st.booleans()
)
capabilities = st.builds(
    Capability,
    pipeline=names,
    modality=st.sampled_from(Modality),
    components=tuples(components),
    denoisers=tuples(names),
    early_stop=st.booleans(),
    resumable=st.booleans(),
    reason=names,
)
answers = st.recursive(
    values | st.binary(max_size=16),
    lambda inner: st.lists(inner, **few) | st.dictionaries(names, inner, **few),
    max_leaves=6,
)
replies = st.one_of(
    st.builds(Hello, rank=counts, pid=counts, epoch=counts, digest=names, protocol=counts),
    st.builds(Serving, counts, places),
    st.builds(Starting, counts, names),
    st.builds(Ready, counts, capabilities),
    st.builds(
        Ticked,
        rank=counts,
        wave_id=counts,
        outcomes=tuples(outcomes),
        parcels=tuples(parcels),
        idle=st.booleans(),
    ),
    st.builds(OutputReady, rank=counts, wave_id=counts, outcome=outcomes, parcel=st.none() | parcels),
    st.builds(Answered, rank=counts, call_id=counts, value=answers, error=st.none() | failures),
    st.builds(
        Dying,
        rank=counts,
        error=st.builds(Raised, kind=names, message=names, faults=tuples(st.tuples(names, names, names))),
    ),
)
large = bytes(range(256)) * (INLINE_BYTES // 256 + 1)


def result(data: bytes, dtype: str = "uint8") -> Completed:
    return Completed("r", Output(modality=Modality.IMAGE, data=data, shape=(1,), dtype=dtype), 3)


def preview(data: bytes) -> Progressed:
    return Progressed("r", 1, 3, result(data).output, 0)


class Memory:
    """Shared memory, without the sharing."""

    def __init__(self) -> None:
        self.blocks: dict[ShmRef, bytes] = {}

    def place(self, data: bytes) -> ShmRef:
        ref = ShmRef("memory", len(self.blocks), len(data))
        self.blocks[ref] = data
        return ref

    def take(self, ref: ShmRef) -> bytes:
        return self.blocks.pop(ref)


@given(commands)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert decode_command(encode(command)) == command


@given(replies)
def test_a_reply_is_read_as_it_was_written(reply: Reply) -> None:
    assert decode_reply(encode(reply)) == reply


@given(st.binary(max_size=80))
def test_rubbish_is_a_bad_message_or_by_chance_a_message(data: bytes) -> None:
    for decode in (decode_command, decode_reply):
        with suppress(BadMessage):
            decode(data)


@given(replies, st.data())
def test_a_damaged_reply_is_read_or_refused_and_nothing_else(reply: Reply, data: st.DataObject) -> None:
    damaged = bytearray(encode(reply))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    with suppress(BadMessage):
        decode_reply(bytes(damaged))


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_a_message_that_is_cut_off_is_bad(cut: int) -> None:
    with pytest.raises(BadMessage, match="no command in"):
        decode_command(encode(Ask(1, Health()))[:cut])


def test_a_message_of_the_other_direction_is_bad() -> None:
    with pytest.raises(BadMessage, match="starting"):
        decode_command(encode(Starting(0, "loading")))


def test_a_field_of_another_type_is_bad_and_named() -> None:
    said = encode(Starting(0, "loading")).replace(b"\xa7loading", b"\x01")
    with pytest.raises(BadMessage, match=r"Expected `str`, got `int`.*doing"):
        decode_reply(said)


def test_numbers_are_not_read_out_of_strings() -> None:
    said = encode(Starting(7, "loading")).replace(b"\xa4rank\x07", b"\xa4rank\xa17")
    with pytest.raises(BadMessage, match=r"Expected `int`, got `str`"):
        decode_reply(said)


@pytest.mark.parametrize("value", [object(), 2**64, "\ud800", {1, object()}])
def test_a_value_that_has_no_place_in_a_message_is_bad(value: object) -> None:
    with pytest.raises(BadMessage, match="Answered can't be sent"):
        encode(Answered(rank=0, call_id=1, value=value))


def test_a_bad_message_is_our_own_fault() -> None:
    assert issubclass(BadMessage, InternalError)


@pytest.mark.parametrize("outcome", [result(large), preview(large)])
def test_large_bytes_travel_beside_their_outcome(outcome: Completed | Progressed) -> None:
    memory = Memory()
    light, parcel = detach(outcome, memory.place)
    assert parcel is not None
    assert (parcel.request_id, parcel.preview) == ("r", isinstance(outcome, Progressed))
    assert len(encode(Ticked(rank=0, wave_id=1, outcomes=(light,), parcels=(parcel,)))) < 400
    assert attach(light, parcel, memory.take) == outcome
    assert not memory.blocks


@pytest.mark.parametrize(
    "outcome",
    [
        result(large[:INLINE_BYTES]),
        preview(b"small"),
        Progressed("r", 1, 3),
        Computed("r"),
        Failed("r", "no"),
    ],
)
def test_what_is_small_stays_where_it_is(outcome: Any) -> None:
    memory = Memory()
    assert detach(outcome, memory.place) == (outcome, None)
    assert not memory.blocks
    assert attach(outcome, None, memory.take) == outcome


def test_without_shared_memory_large_bytes_stay_in_the_message() -> None:
    outcome = result(large)
    assert detach(outcome, None) == (outcome, None)
    ready = OutputReady(rank=0, wave_id=1, outcome=outcome)
    assert decode_reply(encode(ready)) == ready


def test_bytes_of_a_type_that_numpy_does_not_know_pass_unchanged() -> None:
    memory = Memory()
    halves = (b"\x80\x3f\x00\xc0" * INLINE_BYTES)[: INLINE_BYTES * 2]  # 1 and −2 in bfloat16
    light, parcel = detach(result(halves, "bfloat16"), memory.place)
    there = decode_reply(encode(OutputReady(rank=0, wave_id=1, outcome=light, parcel=parcel)))
    assert isinstance(there, OutputReady)
    assert attach(there.outcome, there.parcel, memory.take) == result(halves, "bfloat16")


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel("another", False, ShmRef("memory", 0, 1)),
        Parcel("r", True, ShmRef("memory", 0, 1)),
    ],
)
def test_a_parcel_of_another_outcome_is_refused(parcel: Parcel) -> None:
    with pytest.raises(BadMessage, match="came for Completed of r"):
        attach(result(b""), parcel, Memory().take)


def test_an_outcome_without_an_output_takes_no_parcel() -> None:
    with pytest.raises(BadMessage, match="came for Aborted of r"):
        attach(Aborted("r"), Parcel("r", False, ShmRef("memory", 0, 1)), Memory().take)
