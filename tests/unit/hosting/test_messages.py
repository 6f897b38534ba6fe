"""What crosses between a stage's two processes comes out as it went in."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.core.control import Health, Invoke, RankHealth
from stage_runtime.core.outcome import Aborted, Completed, Failed
from stage_runtime.hosting.messages import (
    Answered,
    Ask,
    Submit,
    answer_of,
    decode_ask,
    decode_tell,
    without_bytes,
)
from stage_runtime.ipc.codec import BadMessage, encode
from support.builders import RequestBuilder
from support.scripted import pixel


def test_a_request_comes_out_as_it_went_in() -> None:
    request = RequestBuilder("ä").previews(1, 2).argument("guidance_scale", 5.0).argument("tag", None).build()
    assert decode_ask(encode(Submit(7, (request,)))) == Submit(7, (request,))


def test_a_value_that_has_no_place_in_a_message_is_refused() -> None:
    with pytest.raises(BadMessage, match="Answered"):
        encode(Answered(1, object()))
    with pytest.raises(BadMessage, match="Ask"):
        encode(Ask(1, Invoke("f", {"x": 1 << 70})))


def test_answers_are_what_their_caller_knows() -> None:
    health = (RankHealth(rank=0, pid=1, device="cpu", allocated_bytes=2),)
    sent = decode_tell(encode(Answered(1, health)))
    assert isinstance(sent, Answered)
    assert answer_of(Health(), sent.value) == health
    assert answer_of(Invoke("f"), [1, 2]) == (1, 2)
    assert answer_of(Invoke("f"), None) is None


def test_an_observer_needs_no_pictures() -> None:
    assert without_bytes(Aborted("a")) == Aborted("a")
    assert without_bytes(Failed("a", "no")) == Failed("a", "no")
    light = without_bytes(Completed("a", pixel(3), 4))
    assert isinstance(light, Completed)
    assert (light.output.data, light.output.shape, light.steps) == (b"", (1, 1, 3), 4)


@given(st.binary(max_size=200))
def test_rubbish_is_refused_and_does_no_other_harm(data: bytes) -> None:
    for decode in (decode_ask, decode_tell):
        with suppress(BadMessage):
            decode(data)


@given(st.data())
def test_a_message_that_is_cut_or_changed_is_read_whole_or_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(Submit(7, (RequestBuilder("a").build(),))))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(BadMessage):
        decode_ask(cut)
