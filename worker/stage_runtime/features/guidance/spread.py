"""Which rank runs what: pure, and the same on every rank, so that nothing of it crosses the wire.

A piece is a call that is run on one rank. The two halves of a doubled batch are two pieces; calls of one request that
are pending together are a piece each; a call that can't be divided is one piece, and the pieces of several requests
are dealt out in turn. A lone piece, and what may not be spread, is run by every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stage_runtime.batching.batcher import Method
from stage_runtime.batching.spec import BatchSpec, Unmergeable
from stage_runtime.features.guidance.rows import take_rows
from stage_runtime.scripts.script import Call, Together


@dataclass(slots=True)
class Piece:
    """A call that one rank runs, and its answer once it is known here."""

    call: Call
    owner: int | None
    """Place in the group; None: every rank."""
    value: Any = None
    error: Exception | None = None
    failed: bool = False
    """On its owner."""

    @property
    def method(self) -> Method:
        """What it calls."""
        return self.call.component, self.call.method


@dataclass(slots=True)
class Share:
    """One submitted call and the pieces it is made of. `rows`: of each piece, when they are halves; else 0."""

    call: Call
    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0


def deal(
    calls: Sequence[Call],
    size: int,
    specs: Mapping[Method, BatchSpec],
    may_spread: Callable[[Call], bool],
) -> list[Share]:
    """The shares of `calls`, in their order, with an owner for each piece."""
    shares = [_divided(call, size, specs, may_spread) for call in calls]
    together = Counter(piece.method for share in shares for piece in share.pieces if piece.owner is not None)
    turn: Counter[Method] = Counter()
    for share in shares:
        for index, piece in enumerate(share.pieces):
            if piece.owner is None:
                continue
            if together[piece.method] == 1:
                piece.owner = None
            elif len(share.pieces) == 1:
                piece.owner = turn[piece.method] % size
                turn[piece.method] += 1
            else:
                piece.owner = index % size
    return shares


def _divided(
    call: Call, size: int, specs: Mapping[Method, BatchSpec], may_spread: Callable[[Call], bool]
) -> Share:
    """The pieces of one call; those that may be spread have owner 0 for now."""
    if isinstance(call, Together):
        return Share(call, [Piece(one, 0 if may_spread(one) else None) for one in call.calls])
    if not may_spread(call):
        return Share(call, [Piece(call, None)])
    spec = specs.get((call.component, call.method))
    if spec is not None:
        try:
            arguments = spec.bind(call.args, call.kwargs)
            rows = spec.rows(arguments)
            if rows > 1 and rows % size == 0:
                each = rows // size
                parts = [take_rows(spec, arguments, rows, i * each, (i + 1) * each) for i in range(size)]
                return Share(call, [Piece(_like(call, part), 0) for part in parts], each)
        except Unmergeable:
            pass
    return Share(call, [Piece(call, 0)])


def _like(call: Call, arguments: dict[str, Any]) -> Call:
    part = Call(call.script, call.component, call.method, (), arguments)
    part.context = call.context
    return part
