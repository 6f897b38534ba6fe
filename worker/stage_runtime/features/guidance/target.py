"""Guidance on two ranks: a target that has each rank run its pieces of all pending calls, and exchanges the answers.

Both ranks play the same scripts, so both know every call; only the modules' work is divided. Afterwards each rank
holds the same answers to the last bit, and its scripts go on as if they had been alone.

The exchange is a frame on the control group (see `lockstep`), and a gather of tensors on the data group of the axis.
Facts, from each rank: `plan`, a checksum over what it believes is run by whom; `names`, the requests of it; `failed`,
the requests that failed here, with why; `pieces`, in the order of the plan and of its own pieces only, the leaves of
each answer or its error. Gathered: the tensors of its answers, contiguous, dtype and shape as the facts say; from the
rank that owns a piece to all others. Ranks that went apart find out in the frame, and none waits for tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from stage_runtime.batching.batcher import Method
from stage_runtime.batching.spec import BatchSpec
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.features.guidance.deferred import DeferredCalls, Templates
from stage_runtime.features.guidance.rows import join_rows
from stage_runtime.features.guidance.spread import Piece, Share, deal
from stage_runtime.parallel.answer_wire import Leaves, flatten, gathered, restored
from stage_runtime.parallel.collectives import Collectives
from stage_runtime.parallel.lockstep import Frame, Lockstep, in_words
from stage_runtime.scripts.script import Call, Script
from stage_runtime.scripts.target import Answer, OnAnswer, Target


class GuidanceTarget:
    """Stands before another target. `methods` may be spread: their answers depend on their arguments alone.

    `deferred` are the components whose calls a script may make without waiting for the answers; `needs_solo` tells a
    call that a hook wants to run alone.
    """

    def __init__(  # noqa: PLR0913 - what it stands before, and what of it may be spread
        self,
        inner: Target,
        control: Lockstep,
        wire: Collectives,
        *,
        specs: Mapping[Method, BatchSpec],
        methods: Collection[Method],
        deferred: Collection[str],
        needs_solo: Callable[[Call], bool],
    ) -> None:
        self._inner, self._control, self._wire = inner, control, wire
        self._specs, self._needs_solo = specs, needs_solo
        self._methods: Collection[Method] = frozenset(methods)
        self._deferred: Collection[str] = frozenset(deferred)
        self._templates: Templates = {}
        self._queue: list[Call] = []
        self._scripts: dict[str, Script] = {}
        self._index, self._size = wire.index, wire.size

    def __len__(self) -> int:
        return len(self._scripts)

    def attend(self, script: Script) -> None:
        """Look after a script that has not started yet, and let it defer its calls."""
        self._scripts[script.request_id] = script
        if self._deferred:
            script.deferral = DeferredCalls(script, self._kind, self._templates)

    def leave(self, request_id: str) -> None:
        """Look after that script no more."""
        self._scripts.pop(request_id, None)

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls; they run at the next poll."""
        self._queue += calls

    def poll(self, timeout_s: float | None = None) -> list[Answer]:
        """Run all that was submitted, with the other ranks where there is something to divide.

        Raises: EngineDeadError when a rank is gone, failed where the others did not, or runs something else.
        """
        calls, self._queue = self._queue, []
        if not calls:
            return []
        shares = deal(calls, self._size, self._specs, self._may_spread)
        pieces = [piece for share in shares for piece in share.pieces]
        for piece in pieces:
            piece.call.shared = piece.owner is None
        self._run([piece for piece in pieces if piece.owner in (None, self._index)])
        spread = [piece for piece in pieces if piece.owner is not None]
        if spread:
            self._exchange(spread)
        return [_answer(share) for share in shares]

    def wake_by(self, wake: OnAnswer) -> None:
        """It answers within `poll`, whatever it has to wait for."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""
        self._queue = [call for call in self._queue if call.script.request_id != request_id]
        self._inner.forget(request_id)

    def _may_spread(self, call: Call) -> bool:
        return (
            (call.component, call.method) in self._methods
            and call.guider is None
            and not self._needs_solo(call)
        )

    def _kind(self, call: Call) -> Hashable | None:
        if call.component not in self._deferred or call.method != "forward" or not self._may_spread(call):
            return None
        return _kind(call)

    def _run(self, pieces: Sequence[Piece]) -> None:
        """Have this rank's modules answer `pieces`."""
        by_call = {id(piece.call): piece for piece in pieces}
        if pieces:
            self._inner.submit([piece.call for piece in pieces])
        while by_call:
            for call, value, error in self._inner.poll():
                piece = by_call.pop(id(call))
                piece.value, piece.error = value, error

    def _exchange(self, spread: Sequence[Piece]) -> None:
        """Give every piece of `spread` its answer."""
        mine = [piece for piece in spread if piece.owner == self._index]
        said: list[Any] = []
        payload: list[torch.Tensor] = []
        for piece in mine:
            if piece.error is not None:
                said.append(in_words(piece.error))
                continue
            leaves, found = flatten(piece.value)
            said.append(leaves)
            payload += found
        failed = {name: in_words(one.error) for name, one in self._scripts.items() if one.error is not None}
        facts = {
            "plan": _checksum(spread),
            "names": _names(spread),
            "failed": dict(sorted(failed.items())),
            "pieces": said,
        }
        frames = self._control.exchange("answers", facts)
        self._check(frames)
        self._receive(spread, frames, gathered(self._wire, payload, [_leaves(frame) for frame in frames]))
        if any(piece.failed for piece in spread):
            self._second_opinion(spread)

    def _check(self, frames: Sequence[Frame]) -> None:
        """Raises: EngineDeadError when the ranks run different things, with the failure that it came of, if one did."""
        if all(frame.facts["plan"] == frames[0].facts["plan"] for frame in frames):
            return
        ranks = self._wire.ranks
        for rank, frame in zip(ranks, frames, strict=True):
            for name, why in frame.facts["failed"].items():
                if not all(name in other.facts["failed"] for other in frames):
                    raise _alone(name, rank, why)
        saw = "; ".join(
            f"rank {rank} runs {', '.join(frame.facts['names'])}"
            for rank, frame in zip(ranks, frames, strict=True)
        )
        raise EngineDeadError(f"the ranks went apart: {saw}")

    def _receive(
        self, spread: Sequence[Piece], frames: Sequence[Frame], payloads: Sequence[torch.Tensor]
    ) -> None:
        templates = {_kind(p.call): p.value for p in spread if p.owner == self._index and p.error is None}
        missing: list[Piece] = []
        for index, (frame, payload) in enumerate(zip(frames, payloads, strict=True)):
            at = 0
            theirs = [piece for piece in spread if piece.owner == index]
            for piece, said in zip(theirs, frame.facts["pieces"], strict=True):
                if isinstance(said, str):
                    piece.failed = True
                elif index != self._index:
                    template = templates.get(_kind(piece.call))
                    leaves = Leaves(said, payload, at)
                    if template is None:
                        missing.append(piece)
                    else:
                        piece.value = restored(template, leaves)
                    at = leaves.end
        # Where nothing here tells what an answer looks like, it is made here as well.
        self._run(missing)

    def _second_opinion(self, spread: Sequence[Piece]) -> None:
        """Run what failed on its owner on the other ranks too: what fails everywhere is the request's fault.

        Raises: EngineDeadError naming the owner, where another rank could do what it could not.
        """
        failed = [piece for piece in spread if piece.failed]
        self._run([piece for piece in failed if piece.owner != self._index])
        verdicts = self._control.exchange(
            "opinions", ["" if piece.error is None else in_words(piece.error) for piece in failed]
        )
        ranks = self._wire.ranks
        for at, piece in enumerate(failed):
            assert piece.owner is not None
            if not all(frame.facts[at] for frame in verdicts):
                rank, why = ranks[piece.owner], verdicts[piece.owner].facts[at]
                raise _alone(piece.call.script.request_id, rank, why)


def _alone(name: str, rank: int, why: str) -> EngineDeadError:
    return EngineDeadError(f"request {name} failed on rank {rank} alone: {why}", rank=rank)


def _answer(share: Share) -> Answer:
    """The answer to a submitted call, of those to its pieces."""
    error = next((piece.error for piece in share.pieces if piece.error is not None), None)
    if error is not None:
        return Answer(share.call, error=error)
    values = [piece.value for piece in share.pieces]
    if share.rows:
        try:
            return Answer(share.call, join_rows(values, share.rows))
        except ValueError as why:
            return Answer(share.call, error=why)
    return Answer(share.call, values if len(values) > 1 else values[0])


def _kind(call: Call) -> Hashable:
    """Calls of one kind have answers of one structure: the flags among their arguments decide on it."""
    flags = tuple(
        (name, value) for name, value in call.kwargs.items() if value is None or isinstance(value, bool | str)
    )
    return call.component, call.method, len(call.args), flags


def _checksum(spread: Sequence[Piece]) -> int:
    plan = [(p.call.script.request_id, p.call.component, p.call.method, p.owner) for p in spread]
    return zlib.crc32(repr(plan).encode())


def _names(spread: Sequence[Piece]) -> list[str]:
    return list(dict.fromkeys(piece.call.script.request_id for piece in spread))


def _leaves(frame: Frame) -> list[Any]:
    """All leaves that a rank's answers have."""
    return [leaf for said in frame.facts["pieces"] if not isinstance(said, str) for leaf in said]
