"""Guidance on two ranks: a target that has each rank run its pieces of all pending calls, and exchanges the answers.

Both ranks play the same scripts, so both know every call; only the modules' work is divided. Afterwards each rank
holds the same answers to the last bit, and its scripts go on as if they had been alone.

The exchange is one frame (see `lockstep`). Facts, from each rank: `plan`, a checksum over what it believes is run by
whom; `names`, the requests of it; `failed`, the requests that failed here, with why; `pieces`, in the order of the
plan and of its own pieces only, the leaves of each answer or its error. Payload: the tensors of its answers,
contiguous, dtype and shape as the facts say; from the rank that owns a piece to all others. On an accelerator the
payload is a second gather, on the device.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Final

import torch

from stage_runtime.batching.batcher import Batcher, CallHook
from stage_runtime.batching.probe import Findings
from stage_runtime.batching.spec import BatchSpec
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.features.guidance.deferred import DeferredCalls, Templates
from stage_runtime.features.guidance.rows import join_rows
from stage_runtime.features.guidance.spread import Method, Piece, Share, deal
from stage_runtime.parallel.leaves import Leaves, flatten, gathered, restored
from stage_runtime.parallel.lockstep import Frame, Lockstep
from stage_runtime.scripts.script import Call, Script
from stage_runtime.scripts.target import Answer

MOST_ERROR: Final = 300

log = logging.getLogger(__name__)


class CfgTarget:
    """Stands before a batcher. `methods` may be spread: their answers depend on their arguments alone.

    `deferred` are the components whose calls a script may make without waiting for the answers.
    """

    def __init__(
        self,
        batcher: Batcher,
        lockstep: Lockstep,
        *,
        specs: Mapping[Method, BatchSpec],
        methods: Collection[Method],
        deferred: Collection[str],
        obstacle: str = "",
    ) -> None:
        self.obstacle = obstacle
        """Why the denoisers' calls can't be spread; empty when they can."""
        self._batcher, self._lockstep, self._specs = batcher, lockstep, specs
        self._methods: Collection[Method] = frozenset(methods)
        self._deferred: Collection[str] = frozenset(deferred)
        self._templates: Templates = {}
        self._queue: list[Call] = []
        self._scripts: dict[str, Script] = {}
        self._index, self._size = lockstep.collectives.index, lockstep.collectives.size

    def attend(self, script: Script) -> None:
        """Look after a script that has not started yet, until it is forgotten, and let it defer its calls."""
        self._scripts[script.request_id] = script
        if self._deferred:
            script.deferral = DeferredCalls(script, self._kind, self._templates)

    def agreed(self, verdict: bool) -> bool:
        """True when every rank says so."""
        return all(frame.facts for frame in self._lockstep.exchange("verdict", verdict))

    @property
    def size(self) -> int:
        """Ranks that share the work."""
        return self._size

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls; they run at the next poll."""
        self._queue += calls

    def poll(self, timeout_s: float | None = None) -> list[Answer]:
        """Run all that was submitted, with the other ranks where there is something to divide.

        Raises: EngineDeadError when a rank is gone, failed where the others did not, or runs something else.
        """
        calls, self._queue = self._queue, []
        shares = deal(calls, self._size, self._specs, self._may_spread)
        pieces = [piece for share in shares for piece in share.pieces]
        self._run([piece for piece in pieces if piece.owner in (None, self._index)])
        spread = [piece for piece in pieces if piece.owner is not None]
        if spread:
            self._exchange(spread)
        return [_answer(share) for share in shares]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""
        self._scripts.pop(request_id, None)
        self._batcher.forget(request_id)

    def _may_spread(self, call: Call) -> bool:
        return (
            (call.component, call.method) in self._methods
            and call.guider is None
            and not any(hook.needs_solo(call) for hook in self._batcher.hooks)
        )

    def _kind(self, call: Call) -> Hashable | None:
        if call.component not in self._deferred or call.method != "forward" or not self._may_spread(call):
            return None
        return _kind(call)

    def _run(self, pieces: Sequence[Piece]) -> None:
        """Have this rank's modules answer `pieces`."""
        by_call = {id(piece.call): piece for piece in pieces}
        if pieces:
            self._batcher.submit([piece.call for piece in pieces])
            for call, value, error in self._batcher.poll():
                piece = by_call[id(call)]
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
        on_device = self._lockstep.collectives.device is not None
        failed = {name: in_words(one.error) for name, one in self._scripts.items() if one.error is not None}
        facts = {
            "plan": _checksum(spread),
            "names": _names(spread),
            "failed": dict(sorted(failed.items())),
            "pieces": said,
        }
        frames = self._lockstep.exchange("answers", facts, () if on_device else payload)
        self._check(frames)
        payloads = (
            gathered(self._lockstep.collectives, payload, [_leaves(frame) for frame in frames])
            if on_device
            else [frame.payload for frame in frames]
        )
        self._receive(spread, frames, payloads)
        if any(piece.failed for piece in spread):
            self._second_opinion(spread)

    def _check(self, frames: Sequence[Frame]) -> None:
        """Raises: EngineDeadError when the ranks run different things, with the failure that it came of, if one did."""
        if all(frame.facts["plan"] == frames[0].facts["plan"] for frame in frames):
            return
        ranks = self._lockstep.collectives.ranks
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
        verdicts = self._lockstep.exchange(
            "opinions", ["" if piece.error is None else in_words(piece.error) for piece in failed]
        )
        ranks = self._lockstep.collectives.ranks
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


def in_words(error: Exception) -> str:
    """Kind and message of an error, cut to fit a frame."""
    return words_of(error)[:MOST_ERROR]


def cfg_target(batcher: Batcher, lockstep: Lockstep, found: Findings, hooks: Sequence[CallHook]) -> CfgTarget:
    """The target for a model, by what the probe found out about it.

    Spread are the denoisers' calls, and the decoders'; nothing of a model that keeps state, or that requests put
    processors on, since each rank needs all of its calls then. Encoders aren't: their answers are large and few.
    """
    pure = not found.impurity and not hooks
    methods = {
        method for method in found.plain if pure and (method[0] in found.denoisers or method[1] == "decode")
    }
    deferred = {name for name in found.denoisers if found.counts_steps and (name, "forward") in methods}
    return CfgTarget(
        batcher,
        lockstep,
        specs=_forwards(found),
        methods=methods,
        deferred=deferred,
        obstacle="" if any(name in found.denoisers for name, _ in methods) else _obstacle(found, hooks),
    )


def _obstacle(found: Findings, hooks: Sequence[CallHook]) -> str:
    """Why no denoiser's call may be spread."""
    if found.impurity:
        return found.impurity
    if hooks:
        return "each rank needs all calls, since requests hook the model"
    return "the denoiser answers with more than tensors"


def _forwards(found: Findings) -> dict[Method, BatchSpec]:
    """What can be cut into halves: only denoisers are called with doubled batches."""
    return {method: found.specs[method] for method in found.specs if method[0] in found.denoisers}
