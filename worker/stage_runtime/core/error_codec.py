"""Errors on their way out of where they happened: words that can go anywhere, and values that become errors again.

What a model raises is not ours: its message may hold lone surrogates, be megabytes long, or raise when it is asked for.
So whoever tells an error to anybody, a client, a log, another process, takes its words from here.
"""

from __future__ import annotations

import traceback
from typing import Final

from msgspec import Struct

from stage_api.errors import Fault, SpecError
from stage_runtime.core import errors
from stage_runtime.core.errors import (
    EngineDeadError,
    InternalError,
    InvalidRequest,
    RequestFailed,
    StageError,
)

MOST_CHARACTERS: Final = 1_000
"""Of an error's words; of longer ones the start remains."""
MOST_FRAMES: Final = 30
_MOST_CAUSES: Final = 5

_KINDS: Final[dict[str, type[StageError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, StageError)
}


class Raised(Struct, frozen=True, kw_only=True):
    """An error between two processes. A 400 stays a 400 with its field, and a full line keeps its seconds."""

    kind: str
    """Name of its class."""
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    rank: int | None = None
    faults: tuple[tuple[str, str, str], ...] = ()
    """Path, expected, got: of a config that can't be run."""


def safe(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` as plain valid Unicode of at most `most` characters; what can't be encoded becomes a question mark."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return str.encode(cut, "utf-8", "replace").decode()


def words_of(error: BaseException, *, kind: bool | None = None) -> str:
    """What `error` says: ours its message, any other its type before that. `kind`: whether the type is said."""
    try:
        said = str(error)
    except BaseException as worse:  # noqa: BLE001 - a message that can't be had is none, whatever its class does
        said = f"(its message can't be had: {type(worse).__name__})"
    ours = isinstance(error, StageError | SpecError) if kind is None else not kind
    return safe(said if ours else f"{type(error).__name__}: {said}")


def contained(error: BaseException) -> Exception:
    """What a model raised, as the end of its request alone: also what would end a process or a thread.

    Raises: KeyboardInterrupt, which is of somebody at the terminal.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, Exception):
        return error
    return RequestFailed(words_of(error, kind=True)).with_traceback(error.__traceback__)


def trace_of(error: BaseException) -> str:
    """Where `error` came from, and what it came of: files, lines and types, and none of their messages."""
    told: list[str] = []
    one: BaseException | None = error
    while one is not None and len(told) < _MOST_CAUSES:
        frames = traceback.extract_tb(one.__traceback__)[-MOST_FRAMES:]
        if frames:
            told.append("".join(traceback.format_list(frames)) + type(one).__name__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return safe("\n\nthe cause of\n\n".join(reversed(told)), most=16_000)


def encoded(error: BaseException) -> Raised:
    """`error` for its way: the nearest class of ours; what is none of ours is an InternalError that names it."""
    if isinstance(error, SpecError):
        faults = tuple((safe(f.path), safe(f.expected), safe(f.got)) for f in error.faults)
        return Raised(kind=SpecError.__name__, message=words_of(error), faults=faults)
    known = (one.__name__ for one in type(error).__mro__ if _KINDS.get(one.__name__) is one)
    # others may have names like these for what is told when it is asked for, or raises
    ours = isinstance(error, StageError)
    field, retry_after_s = (
        getattr(error, name, None) if ours else None for name in ("field", "retry_after_s")
    )
    return Raised(
        kind=next(known, InternalError.__name__),
        message=words_of(error),
        field=safe(field) if isinstance(error, InvalidRequest) and isinstance(field, str) else None,
        retry_after_s=retry_after_s if isinstance(retry_after_s, int | float) else None,
        rank=error.rank if isinstance(error, EngineDeadError) else None,
    )


def decoded(raised: Raised) -> Exception:
    """The error that came."""
    if raised.kind == SpecError.__name__:
        return SpecError([Fault(*fault) for fault in raised.faults] or [Fault("", "", raised.message)])
    kind = _KINDS.get(raised.kind, InternalError)
    if issubclass(kind, InvalidRequest):
        return kind(raised.message, raised.field)
    if issubclass(kind, errors.AdmissionFull | errors.NotAdmitting) and raised.retry_after_s is not None:
        return kind(raised.message, raised.retry_after_s)
    if issubclass(kind, EngineDeadError):
        return kind(raised.message, rank=raised.rank)
    return kind(raised.message)
