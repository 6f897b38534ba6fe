"""One device's model side: takes requests in, advances those it is told to, answers with outcomes by request id.

It decides nothing: what runs, and with whom, is the wave's (DIFF-MODEL-INV-003). Not thread-safe: the thread that
makes a runner uses it, since scripts are greenlets.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stage_runtime.batching.batcher import Batcher, CallCounts
from stage_runtime.core.capability import Capability
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import InternalError, InvalidRequest, OutOfMemory
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
from stage_runtime.parallel.lockstep import Lockstep, in_words
from stage_runtime.runner.output import Deliver, Made, OutputFormat
from stage_runtime.runner.previews import Preview, Previews
from stage_runtime.runner.script_factory import ScriptFactory
from stage_runtime.scripts.noise import generator_of
from stage_runtime.scripts.replay import Checkpoint, Recording, interrupt
from stage_runtime.scripts.script import Script
from stage_runtime.scripts.target import OnAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What a runner is made of: put together by `assemble_rank`, tried and found well."""

    factory: ScriptFactory
    batcher: Batcher
    capability: Capability
    output: OutputFormat
    sample_rate: int | None = None
    """Hertz, of what makes sound."""
    deliver: Deliver | None = None
    control: Lockstep | None = None
    """The ranks that share this copy of the model; None: this one has it for itself."""


class Runner:
    """Runs requests on a loaded pipeline."""

    def __init__(self, parts: RunnerParts) -> None:
        self._factory, self._batcher = parts.factory, parts.batcher
        self._hub = parts.factory.hub
        self._output, self._sample_rate, self._deliver = parts.output, parts.sample_rate, parts.deliver
        self._control = parts.control
        self._device = parts.factory.pipeline.device
        self.capability = parts.capability
        self._previews = Previews(
            parts.factory,
            self._result,
            parts.batcher.on_fault,
            shown=parts.control is None or parts.control.collectives.index == 0,
        )
        self._requests: dict[str, Request] = {}
        self._recordings: dict[str, Recording] = {}
        self._told: dict[str, int] = {}
        """Steps already reported, by request."""
        self._waits = False

    @property
    def counts(self) -> CallCounts:
        """Calls of real modules since the start."""
        return self._batcher.counts

    @property
    def waits(self) -> bool:
        """True when the last tick left a request at a call that is answered from elsewhere."""
        return self._waits

    def wake_by(self, wake: OnAnswer) -> None:
        """Have `wake` called when such an answer is there."""
        self._hub.target.wake_by(wake)

    def add(self, request: Request, start: Checkpoint | None = None) -> None:
        """Take a request in; it starts with the first tick that names it, and goes on where `start` was taken."""
        request_id = request.request_id
        self._requests[request_id] = request
        self._told[request_id] = start.steps if start is not None else 0
        generator = generator_of(request, self._device)
        script = self._factory.open(request_id, request.arguments, generator, start, request=request)
        if isinstance(script.watcher, Recording):
            self._recordings[request_id] = script.watcher

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all that is held for these, wherever they are. Unknown ids are no error."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self._recordings.pop(request_id, None)
            self._told.pop(request_id, None)
            self._previews.forget(request_id)
            self._factory.forget(request_id)

    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """Advance these by one denoise step each. One that did not move gives no outcome.

        Raises InternalError for an id that was never added; DeviceLost, through `on_fault`; EngineDeadError when one
        failed on a rank alone.
        """
        for request_id in request_ids:
            if request_id not in self._requests:
                raise InternalError(f"request {request_id} is scheduled but has no state here")
        self._waits = not self._hub.tick(request_ids)
        if self._control is not None:
            self._agree_on_ends(self._control, request_ids)
        previews = self._draw_previews(request_ids)
        return [
            outcome
            for request_id in request_ids
            if (outcome := self._outcome(request_id, previews)) is not None
        ]

    def convert(self, result: Any) -> Output:
        """What a pipeline has made, in host memory. Any thread. Raises: ValueError for what it can't be."""
        return self._output.convert(result, self._sample_rate)

    def stop_early(self, request_id: str) -> None:
        """Have a request skip its remaining steps, after the one it is in. Raises InvalidRequest when it can't."""
        if not self.capability.early_stop:
            raise InvalidRequest(f"{self.capability.pipeline} can't stop early")
        script = self._hub.scripts.get(request_id)
        # NB: one that was handed over but hasn't begun would forget it: pipelines clear the mark when they begin.
        if script is None or not script.started or script.done:
            raise InvalidRequest(f"request {request_id} is not running")
        interrupt(script.pipeline)

    def checkpoint(self, request_id: str) -> Checkpoint:
        """How far a running request is. Raises InvalidRequest when the pipeline is not resumable."""
        if not self.capability.resumable:
            raise InvalidRequest(f"{self.capability.pipeline} can't be resumed: {self.capability.reason}")
        return self._checkpoint(request_id)

    def _checkpoint(self, request_id: str) -> Checkpoint:
        return self._recordings[request_id].checkpoint(self._hub.scripts[request_id])

    def outstanding(self) -> dict[str, int]:
        """What is held, by kind; all 0 at rest."""
        return {**self._factory.held(), "recordings": len(self._recordings)}

    def close(self) -> None:
        """End all scripts and let go of the model."""
        self.forget(list(self._requests))
        self._batcher.modules = {}
        self._factory.close()

    def _outcome(self, request_id: str, previews: Mapping[str, Preview]) -> ExecutorOutcome | None:
        script, request = self._hub.scripts[request_id], self._requests[request_id]
        if script.done:
            return self._end(request_id, script)
        preview = previews.get(request_id)
        if preview is None and script.steps == self._told[request_id]:
            return None
        self._told[request_id] = script.steps
        if preview is None:
            return Progressed(request_id, script.steps, request.steps)
        return Progressed(request_id, script.steps, request.steps, preview.output, preview.index)

    def _end(self, request_id: str, script: Script) -> ExecutorOutcome:
        if self._deliver is not None and script.error is None:
            result, script.result = script.result, None
            self._deliver(Made(request_id, result, script.steps, _phases(script)))
            return Computed(request_id)
        output = self._result(script)
        if isinstance(output, Output):
            return Completed(request_id, output, script.steps, _phases(script))
        self._batcher.on_fault(output)  # what fails between two calls of modules may be the device too
        return _failure(request_id, output)

    def _result(self, script: Script) -> Output | Exception:
        """What a script that ended has made, or why there is nothing."""
        if script.error is not None:
            return script.error
        try:
            return self.convert(script.result)
        except Exception as error:  # noqa: BLE001 - a result that can't be used fails its request, and no other
            return error

    def _draw_previews(self, request_ids: Sequence[str]) -> dict[str, Preview]:
        """Pictures of requests that are past a step after which one was asked for."""
        if self.capability.previews:
            for request_id in request_ids:
                request, script = self._requests[request_id], self._hub.scripts[request_id]
                if request.preview_steps and self._previews.due(request, script):
                    self._previews.begin(request, script, self._checkpoint(request_id))
        return self._previews.draw()

    def _agree_on_ends(self, control: Lockstep, request_ids: Sequence[str]) -> None:
        """Have the ranks that share the model find out if a request failed on one of them alone."""
        scripts = [self._hub.scripts[request_id] for request_id in request_ids]
        ended = {s.request_id: "" if s.error is None else in_words(s.error) for s in scripts if s.done}
        if ended:
            control.vote(ended)


def _phases(script: Script) -> PhaseSeconds:
    """What a finished script spent its time on. A pipeline without denoise steps only prepares."""
    prepared_s = script.prepared_s or script.ended_s
    denoised_s = max(script.denoised_s, prepared_s)
    return PhaseSeconds(
        prepare=prepared_s - script.began_s,
        denoise=denoised_s - prepared_s,
        decode=script.ended_s - denoised_s,
    )


def _failure(request_id: str, error: Exception) -> Failed:
    """The pipeline's own check of its inputs is the client's fault; everything else is not."""
    frames = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    if "check_inputs" in frames and isinstance(error, ValueError | TypeError):
        return failed(request_id, InvalidRequest(words_of(error, kind=False)), of=error)
    if out_of_memory(error):
        return failed(request_id, OutOfMemory(NO_MEMORY), of=error)
    return failed(request_id, error)
