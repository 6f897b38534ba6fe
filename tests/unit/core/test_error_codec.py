"""An error gets out of where it happened, whatever it is: as safe words, and as itself."""

from __future__ import annotations

import msgspec
import pytest

from stage_api.errors import Fault, SpecError
from stage_runtime.core.error_codec import MOST_CHARACTERS, Raised, decoded, encoded, trace_of, words_of
from stage_runtime.core.errors import (
    AdmissionFull,
    DeviceLost,
    EngineDeadError,
    EngineHung,
    FetchFailed,
    InternalError,
    InvalidRequest,
    ModelError,
    NotAdmitting,
    OutOfDeviceMemory,
    OutOfMemory,
    RendezvousTimeout,
    RequestAborted,
    RequestFailed,
)
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.core.outcome import Failed, failed
from stage_runtime.exit import exit_code_of, report_of
from stage_runtime.ipc.codec import BadMessage, decode_reply, encode
from stage_runtime.ipc.messages import Dying, Ticked

ERRORS = [
    InvalidRequest("width: too large", "width"),
    InvalidRequest("no"),
    AdmissionFull("the line is full", 12.5),
    NotAdmitting("draining", 3.0),
    RequestAborted("taken back"),
    OutOfMemory("24 GiB"),
    RequestFailed("ValueError: nan"),
    EngineDeadError("rank 1 was killed", rank=1),
    EngineHung("no progress"),
    DeviceLost("illegal access", rank=0),
    RendezvousTimeout("rank 3 is missing", rank=3),
    OutOfDeviceMemory("it does not fit"),
    ModelError("no weights"),
    FetchFailed("no route"),
    InternalError("a law is broken"),
    SpecError([Fault("spec.engine", "one thing", "another"), Fault("factory", "a", "b")]),
]


class Mute(Exception):
    """Can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Leaving(Exception):
    """Would end who asks for its words."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Stubborn(Exception):
    """Has names as ours have, and tells nobody."""

    @property
    def field(self) -> str:
        raise RuntimeError("not yours")

    retry_after_s = rank = field


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Unlike(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Dressed(str):
    """Text that is more than text."""

    def encode(self, *_: object) -> bytes:
        raise ValueError("not me")


class Unpicklable(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(lambda: (one, two))


class Deep(Exception):
    def __init__(self) -> None:
        nest: list[object] = []
        for _ in range(100_000):
            nest = [nest]
        super().__init__(nest)


FOREIGN = {
    "a lone surrogate": ValueError("half of \ud83d"),
    "surrogates alone": ValueError("\udcff" * 5000),
    "no message": ValueError(),
    "__str__ raises": Mute(),
    "__str__ would end the process": Leaving(),
    "names as ours": Stubborn("why"),
    "__str__ without end": Endless(),
    "__str__ gives a number": Unlike(),
    "a dressed string": ValueError(Dressed("hello")),
    "not to be pickled": Unpicklable(1, 2),
    "ten megabytes": RuntimeError("x" * 10_000_000),
    "bytes": RuntimeError(b"\xff\x00" * 3000),
    "zero bytes": RuntimeError("a\x00b"),
    "nested too deep": Deep(),
    "a long name": type("N" * 5000, (Exception,), {})("why"),
    "ours, with a surrogate": RequestFailed("half of \ud83d"),
    "ours, ten megabytes": ModelError("x" * 10_000_000),
    "a group": ExceptionGroup("two", [ValueError("\ud800"), Mute()]),
}


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_an_error_keeps_its_type_and_all_it_says(error: Exception) -> None:
    came = decoded(encoded(error))
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert vars(came) == vars(error)
    assert exit_code_of(came) == exit_code_of(error)


def test_an_error_that_is_none_of_ours_is_named_and_means_a_broken_law() -> None:
    came = decoded(encoded(KeyError("a bug")))
    assert type(came) is InternalError
    assert "KeyError" in str(came)
    assert exit_code_of(came) == exit_code_of(KeyError())


def test_an_error_of_a_class_that_the_client_does_not_know_is_its_nearest() -> None:
    assert type(decoded(encoded(BadMessage("garbage")))) is InternalError
    assert type(decoded(Raised(kind="FromTheFuture", message="m"))) is InternalError


@pytest.mark.parametrize("error", FOREIGN.values(), ids=FOREIGN)
def test_whatever_a_model_raises_has_words_that_can_go_anywhere(error: Exception) -> None:
    said = words_of(error)
    assert len(said) <= MOST_CHARACTERS
    assert said.encode().decode() == said
    assert type(said) is str
    assert not out_of_memory(error)
    assert report_of(error).encode()


@pytest.mark.parametrize("error", FOREIGN.values(), ids=FOREIGN)
def test_whatever_a_model_raises_crosses_on_every_way_that_an_error_takes(error: Exception) -> None:
    outcome = failed("a", error, "the output can't be packed")
    assert len(outcome.message) <= MOST_CHARACTERS
    for reply in (Ticked(rank=0, wave_id=1, outcomes=(outcome,)), Dying(rank=0, error=encoded(error))):
        assert decode_reply(encode(reply)) == reply


def test_a_field_that_a_model_made_up_is_made_safe_too() -> None:
    for field in ("half of \ud83d", "x" * 10_000):
        outcome = failed("a", InvalidRequest("no", field))
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=Failed) == outcome
        assert len(encoded(InvalidRequest("no", field)).field or "") <= MOST_CHARACTERS


def _raised() -> Exception:
    try:
        try:
            raise KeyError("the secret of the prompt")
        except KeyError as cause:
            raise ValueError("more of the prompt") from cause
    except ValueError as error:
        return error


def test_a_trace_has_places_and_types_of_an_error_and_its_cause_and_none_of_their_words() -> None:
    trace = trace_of(_raised())
    assert trace.index("KeyError") < trace.index("ValueError")
    assert "test_error_codec.py" in trace
    assert "in _raised" in trace


def test_an_error_that_was_never_raised_has_no_trace() -> None:
    assert trace_of(ValueError("made")) == ""


def test_a_trace_is_bounded_however_deep_the_error_comes_from() -> None:
    def fall(depth: int) -> None:
        if depth == 0:
            raise RuntimeError("deep")
        fall(depth - 1)

    with pytest.raises(RuntimeError) as raised:
        fall(500)
    assert 0 < trace_of(raised.value).count("in fall") <= 60
