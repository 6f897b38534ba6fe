"""The runner of step models: the same waves, outcomes and previews as for pipelines, from four explicit methods.

It decides nothing: what runs, and with whom, is the wave's (DIFF-MODEL-INV-003). Not thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from stage_runtime.batching.batcher import CallCounts
from stage_runtime.batching.step_calls import METHODS, StepCalls
from stage_runtime.batching.step_probe import Findings
from stage_runtime.core.capability import Capability, ComponentCapability
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import InternalError, InvalidRequest, NonFiniteOutput, OutOfMemory
from stage_runtime.core.memory_errors import NO_MEMORY, out_of_memory
from stage_runtime.core.outcome import (
    Completed,
    Computed,
    ExecutorOutcome,
    Failed,
    Output,
    PhaseSeconds,
    Progressed,
    failed,
)
from stage_runtime.core.request import Request
from stage_runtime.pipelines.step_model import StepResult, StepState
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import PIXELS, TENSORS, Made, modality_of
from stage_runtime.scripts.finite import check_finite
from stage_runtime.scripts.target import OnAnswer

log = logging.getLogger(__name__)

DENOISER: Final = "model"
"""What the model's network is called where a pipeline's denoiser is named."""


@dataclass(slots=True)
class _Member:
    """One request here. `state` is None until its first tick, and again once it has ended."""

    request: Request
    state: StepState | None = None
    error: Exception | None = None
    stopped: bool = False
    ended: bool = False
    chunks: int = 0
    """Pieces of its output that were given."""
    began_s: float = 0.0
    prepared_s: float = 0.0
    denoised_s: float = 0.0

    @property
    def moves(self) -> bool:
        """True while it has steps to do."""
        return self.state is not None and not self.stopped and self.state.step < self.state.steps

    @property
    def done(self) -> bool:
        """True when nothing but decoding is left."""
        return self.state is not None and not self.moves

    @property
    def previewed(self) -> bool:
        """True when a picture was asked for at the step that it is at."""
        return self.moves and self.state is not None and self.state.step in self.request.preview_steps


class StepRunner:
    """Runs requests on a loaded step model; a `ModelRunner`. `found`: what the probe found of the model."""

    def __init__(
        self,
        calls: StepCalls,
        found: Findings,
        *,
        sample_rate: int | None = None,
        options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
    ) -> None:
        self._calls = calls
        self._sample_rate, self._deliver = sample_rate, options.deliver
        self._output = TENSORS if options.output is PIXELS else options.output
        self._members: dict[str, _Member] = {}
        self.capability = Capability(
            pipeline=type(calls.model).__name__,
            modality=modality_of(found.result),
            components=tuple(
                ComponentCapability(name=name, merges=not found.reason, reason=found.reason)
                for name in METHODS
            ),
            denoisers=(DENOISER,),
            early_stop=True,
            resumable=True,
        )

    @property
    def counts(self) -> CallCounts:
        """Calls of the model's methods since the start."""
        return self._calls.counts

    @property
    def waits(self) -> bool:
        """Never: its calls are answered at once."""
        return False

    def wake_by(self, wake: OnAnswer) -> None:
        """There is nothing to be woken for."""

    def add(self, request: Request, start: StepState | None = None) -> None:
        """Take a request in; it starts with the first tick that names it, and goes on from `start` if given.

        Raises: InternalError for an id that is here.
        """
        if request.request_id in self._members:
            raise InternalError(f"request {request.request_id} is here already")
        member = self._members[request.request_id] = _Member(request, start)
        if start is not None:
            member.began_s = member.prepared_s = member.denoised_s = time.perf_counter()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all that is held for these, wherever they are. Unknown ids are no error."""
        for request_id in request_ids:
            self._members.pop(request_id, None)

    @torch.no_grad()
    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """Advance these by one denoise step each: newcomers prepare before it, finishers decode after it.

        One that has ended gives no outcome. Raises InternalError for an id that was never added; DeviceLost, through
        `on_fault`.
        """
        members = [self._member(request_id) for request_id in request_ids]
        members = [member for member in members if not member.ended]
        self._prepare([member for member in members if member.state is None])
        moving = [member for member in members if member.moves]
        self._advance(moving)
        chunks = self._new_chunks([one for one in moving if one.request.chunks and one.moves])
        # A chunk is all that a preview at its step would show, and more.
        drawn = [
            member
            for member in members
            if member.error is None
            and (member.done or (member.previewed and member.request.request_id not in chunks))
        ]
        results = self._calls.decode([member.state for member in drawn if member.state is not None])
        by_id = {member.request.request_id: result for member, result in zip(drawn, results, strict=True)}
        return [
            chunks.get(member.request.request_id)
            or self._outcome(member, by_id.get(member.request.request_id))
            for member in members
        ]

    def convert(self, result: Any) -> Output:
        """What a request has come to, in host memory. Any thread. Raises: ValueError for what it can't be."""
        return self._output.convert(result, self._sample_rate)

    def stop_early(self, request_id: str) -> None:
        """Have a request skip its remaining steps, after the one it is in. Raises InvalidRequest if it isn't here."""
        member = self._members.get(request_id)
        if member is None or member.state is None:
            raise InvalidRequest(f"request {request_id} is not running")
        member.stopped = True

    def checkpoint(self, request_id: str) -> StepState:
        """How far a running request is, to `add` it again. Raises InvalidRequest when it isn't running."""
        member = self._members.get(request_id)
        if member is None or member.state is None:
            raise InvalidRequest(f"request {request_id} is not running")
        return member.state

    def outstanding(self) -> dict[str, int]:
        """What is held, by kind; all 0 at rest."""
        return {"states": len(self._members)}

    def close(self) -> None:
        """End everything and let go of the model."""
        self._members.clear()
        cast(Any, self._calls).model = None

    def _member(self, request_id: str) -> _Member:
        member = self._members.get(request_id)
        if member is None:
            raise InternalError(f"request {request_id} is scheduled but has no state here")
        return member

    def _prepare(self, members: Sequence[_Member]) -> None:
        began_s = time.perf_counter()
        states = self._calls.prepare([member.request for member in members])
        for member, state in zip(members, states, strict=True):
            member.began_s = began_s
            member.prepared_s = member.denoised_s = time.perf_counter()
            self._put(member, state)

    def _advance(self, members: Sequence[_Member]) -> None:
        states = [member.state for member in members if member.state is not None]
        for member, state in zip(members, self._calls.advance(states), strict=True):
            member.denoised_s = time.perf_counter()
            self._put(member, state)

    def _new_chunks(self, members: Sequence[_Member]) -> dict[str, ExecutorOutcome]:
        """The progress of those that have a new piece of their output, by request. One that can't be had ends it."""
        told: dict[str, ExecutorOutcome] = {}
        found = self._calls.new_chunks([member.state for member in members if member.state is not None])
        for member, chunk in zip(members, found, strict=True):
            if chunk is None or member.state is None:
                continue
            request, step = member.request, member.state.step
            output = chunk if isinstance(chunk, Exception) else self._converted(chunk)
            if isinstance(output, Exception):
                told[request.request_id] = self._failed(member, output)
                continue
            told[request.request_id] = Progressed(
                request.request_id, step, request.steps, output, member.chunks, chunk=True
            )
            member.chunks += 1
        return told

    @staticmethod
    def _put(member: _Member, state: StepState | Exception) -> None:
        if isinstance(state, Exception):
            member.state, member.error = None, state
        else:
            member.state = state

    def _outcome(self, member: _Member, result: StepResult | Exception | None) -> ExecutorOutcome:
        request, state = member.request, member.state
        if member.error is not None or state is None:
            return self._failed(member, member.error or InternalError("neither state nor error"))
        if not member.done:
            return self._progressed(request, state, result)
        if isinstance(result, Exception) or result is None:
            return self._failed(member, result or InternalError("it was not decoded"))
        try:
            check_finite(_contents(state), "state")
        except NonFiniteOutput as error:
            return self._failed(member, error)
        if self._deliver is not None:
            self._deliver(Made(request.request_id, result, state.step, self._end(member)))
            return Computed(request.request_id)
        output = self._converted(result)
        if isinstance(output, Exception):
            return self._failed(member, output)
        return Completed(request.request_id, output, state.step, self._end(member))

    def _progressed(
        self, request: Request, state: StepState, result: StepResult | Exception | None
    ) -> Progressed:
        if result is None:
            return Progressed(request.request_id, state.step, request.steps)
        preview = self._converted(result) if not isinstance(result, Exception) else result
        if isinstance(preview, Exception):
            why = words_of(preview)[:200]
            log.warning("preview not drawn", extra={"request_id": request.request_id, "why": why})
            return Progressed(request.request_id, state.step, request.steps)
        index = request.preview_steps.index(state.step)
        return Progressed(request.request_id, state.step, request.steps, preview, index)

    def _converted(self, result: StepResult) -> Output | Exception:
        try:
            return self.convert(result)
        except Exception as error:  # noqa: BLE001 - a result that can't be used fails its request, and no other
            self._calls.on_fault(error)  # copying from the device is where its faults show
            return error

    def _failed(self, member: _Member, error: Exception) -> Failed:
        self._end(member)
        request_id = member.request.request_id
        if out_of_memory(error):
            return failed(request_id, OutOfMemory(NO_MEMORY), of=error)
        return failed(request_id, error)

    @staticmethod
    def _end(member: _Member) -> PhaseSeconds:
        """Let go of the member's tensors; what it spent its time on."""
        member.state, member.error, member.ended = None, None, True
        return PhaseSeconds(
            prepare=member.prepared_s - member.began_s,
            denoise=member.denoised_s - member.prepared_s,
            decode=time.perf_counter() - member.denoised_s,
        )


def _contents(state: StepState) -> dict[str, Any]:
    """What a state holds, by name: a decoder may clamp what isn't finite in it."""
    names = getattr(state, "__dataclass_fields__", None) or getattr(state, "__dict__", {})
    return {name: getattr(state, name) for name in names}
