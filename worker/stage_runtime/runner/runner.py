"""One device's model side: takes requests in, advances those it is told to, answers with outcomes by request id.

It decides nothing: what runs, and with whom, is the wave's (DIFF-MODEL-INV-003). Not thread-safe: the thread that
makes a runner uses it, since scripts are greenlets.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from stage_api.errors import Fault, SpecError
from stage_runtime.batching.batcher import Batcher, CallCounts, CallHook
from stage_runtime.batching.probe import PROMPT, SEED, STEPS, Ask, Loaded, probe
from stage_runtime.core.capability import Capability
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import InternalError, InvalidRequest, OutOfMemory
from stage_runtime.core.memory import NO_MEMORY, out_of_memory
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
from stage_runtime.features.guidance.target import CfgTarget, cfg_target, in_words
from stage_runtime.parallel.context import ParallelContext
from stage_runtime.runner.hub import DECODE, Hub
from stage_runtime.runner.output import PIXELS, Deliver, Made, OutputFormat, deferred, differs, modality_of
from stage_runtime.scripts.known_facts import settle
from stage_runtime.scripts.noise import generator_of
from stage_runtime.scripts.replay import Checkpoint, Recording, can_interrupt, interrupt
from stage_runtime.scripts.script import Script, open_script

log = logging.getLogger(__name__)

STEPS_ARGUMENT: Final = "num_inference_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a runner works."""

    merge: bool = True
    """False: every call runs alone, so that a picture never depends on its neighbours, to the last bit."""
    output: OutputFormat = PIXELS
    deliver: Deliver | None = None
    """Who takes what was made, unconverted; the outcome is `Computed` then. None: the runner converts it itself."""
    parallel: ParallelContext | None = None
    """The ranks that share this copy of the model. None: this one has it for itself."""


class Runner:
    """Runs requests on a loaded pipeline.

    `ask(prompts, seed, steps)` gives the arguments of a small request for the probe; `on_fault(error)` is told of
    every exception that a module raised, and raises DeviceLost when the device itself is gone.
    """

    def __init__(
        self,
        pipeline: Any,
        ask: Callable[[str, int], dict[str, Any]],
        *,
        on_fault: Callable[[Exception], None] = lambda error: None,
        sample_rate: int | None = None,
        options: RunnerOptions = RunnerOptions(),
    ) -> None:
        self._sample_rate, self._deliver = sample_rate, options.deliver
        self._output = options.output if self._deliver is None else deferred(options.output, pipeline)
        self._device = pipeline.device
        self._pipeline = settle(pipeline)
        loaded = Loaded.of(self._pipeline)
        found = probe(loaded, self._probe_arguments(ask))
        hooks: list[CallHook] = [loaded.contexts] if loaded.contexts.modules else []
        self._overlay = loaded.overlay if found.disturbs_processors else None
        if self._overlay is not None:
            hooks.append(self._overlay)
        self._batcher = Batcher(
            loaded.modules,
            specs=found.specs if options.merge else {},
            plain=found.plain,
            hooks=tuple(hooks),
            on_fault=on_fault,
        )
        self._parallel = options.parallel
        lockstep = options.parallel.lockstep if options.parallel is not None else None
        self._spread = cfg_target(self._batcher, lockstep, found, hooks) if lockstep is not None else None
        self._hub = Hub(
            self._spread or self._batcher, frozenset(found.denoisers), found.counts_steps, self._overlay
        )
        self._requests: dict[str, Request] = {}
        self._recordings: dict[str, Recording] = {}
        self._told: dict[str, int] = {}
        """Steps already reported, by request."""
        self._one_step_calls = 0
        self._resumable = True
        """Scripts are recorded: true while that is being proven, then as the proof found."""
        small = self._probe_arguments(ask)([PROMPT], SEED, STEPS)
        want = found.result if self._spread is None else self._try_spread(self._spread, small, found.result)
        why = found.impurity or self._prove_replay(small, want)
        self._resumable = why == ""
        self.capability = Capability(
            pipeline=type(pipeline).__name__,
            modality=modality_of(found.result),
            components=tuple(found.components),
            denoisers=found.denoisers,
            early_stop=can_interrupt(pipeline),
            resumable=self._resumable,
            reason=why,
        )
        self._batcher.counts = CallCounts()

    @property
    def counts(self) -> CallCounts:
        """Calls of real modules since the start."""
        return self._batcher.counts

    def add(self, request: Request, start: Checkpoint | None = None) -> None:
        """Take a request in; it starts with the first tick that names it, and goes on where `start` was taken."""
        request_id = request.request_id
        self._requests[request_id] = request
        self._told[request_id] = start.steps if start is not None else 0
        script = self._open(request_id, request.arguments, generator_of(request, self._device), start)
        if isinstance(script.watcher, Recording):
            self._recordings[request_id] = script.watcher

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all that is held for these, wherever they are. Unknown ids are no error."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self._recordings.pop(request_id, None)
            self._told.pop(request_id, None)
            self._hub.forget(request_id)

    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """Advance these by one denoise step each. One that did not move gives no outcome.

        Raises InternalError for an id that was never added; DeviceLost, through `on_fault`.
        """
        for request_id in request_ids:
            if request_id not in self._requests:
                raise InternalError(f"request {request_id} is scheduled but has no state here")
        self._hub.tick(request_ids)
        self._agree_on_ends(request_ids)
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
        return self._recordings[request_id].checkpoint(self._hub.scripts[request_id])

    def outstanding(self) -> dict[str, int]:
        """What is held, by kind; all 0 at rest."""
        return {
            "scripts": len(self._hub.scripts),
            "recordings": len(self._recordings),
            "processors": len(self._overlay) if self._overlay is not None else 0,
        }

    def close(self) -> None:
        """End all scripts and let go of the model."""
        self.forget(list(self._hub.scripts))
        self._batcher.modules = {}
        self._pipeline = None

    def _outcome(self, request_id: str, previews: dict[str, Output]) -> ExecutorOutcome | None:
        script, request = self._hub.scripts[request_id], self._requests[request_id]
        if script.done:
            if self._deliver is not None and script.error is None:
                result, script.result = script.result, None
                self._deliver(Made(request_id, result, script.steps, _phases(script)))
                return Computed(request_id)
            output = self._result(script)
            if not isinstance(output, Output):
                self._batcher.on_fault(
                    output
                )  # what fails between two calls of modules may be the device too
                return _failure(request_id, output)
            return Completed(request_id, output, script.steps, _phases(script))
        if script.steps == self._told[request_id]:
            return None
        self._told[request_id] = script.steps
        preview = previews.get(request_id)
        index = request.preview_steps.index(script.steps) if preview is not None else None
        return Progressed(request_id, script.steps, request.steps, preview, index)

    def _result(self, script: Script) -> Output | Exception:
        """What a script that ended has made, or why there is nothing."""
        if script.error is not None:
            return script.error
        try:
            return self.convert(script.result)
        except Exception as error:  # noqa: BLE001 - a result that can't be used fails its request, and no other
            return error

    def _draw_previews(self, request_ids: Sequence[str]) -> dict[str, Output]:
        """Pictures of requests that are at a step after which one was asked for, decoded together."""
        due = []
        for request_id in request_ids:
            script = self._hub.scripts[request_id]
            moved = script.steps > self._told[request_id]
            if moved and not script.done and script.steps in self._requests[request_id].preview_steps:
                due.append(request_id)
        if not due or not self._resumable:
            return {}
        names = {request_id: f"{request_id}/preview" for request_id in due}
        for request_id, name in names.items():
            request = self._requests[request_id]
            start = self.checkpoint(request_id)
            self._open(name, request.arguments, generator_of(request, self._device), start, decode_only=True)
        self._hub.run(names.values())
        drawn = {}
        for request_id, name in names.items():
            if not self._answers:  # it ran here since the ranks decode together
                self._hub.forget(name)
                continue
            picture = self._result(self._hub.scripts[name])
            if isinstance(picture, Output):
                drawn[request_id] = picture
            else:
                self._batcher.on_fault(picture)
                why = repr(picture)[:200]
                log.warning("preview not drawn", extra={"request_id": request_id, "why": why})
            self._hub.forget(name)
        return drawn

    def _open(
        self,
        name: str,
        arguments: dict[str, Any],
        generator: torch.Generator,
        start: Checkpoint | None = None,
        *,
        decode_only: bool = False,
    ) -> Script:
        """A script on the hub. `decode_only` decodes the latents of `start` and does nothing else."""
        if decode_only and start is not None and not can_interrupt(self._pipeline):
            arguments, start = {**arguments, STEPS_ARGUMENT: 1}, start.shortened(self._one_step_calls)
        script = open_script(
            self._pipeline, name, {**arguments, **self._output.arguments, "generator": generator}
        )
        if self._resumable:
            script.watcher = Recording(self._hub.denoisers, [generator], start, decode_only=decode_only)
            script.replays = start.steps if start is not None else 0
        if self._spread is not None:
            self._spread.attend(script)
        self._hub.add(script)
        return script

    def _probe_arguments(self, ask: Callable[[str, int], dict[str, Any]]) -> Ask:
        def arguments(prompts: Sequence[str], seed: int, steps: int) -> dict[str, Any]:
            asked = {**ask(prompts[0], steps), **self._output.arguments}
            generators = [torch.Generator(self._device).manual_seed(seed + i) for i in range(len(prompts))]
            if len(prompts) == 1:
                return {**asked, "generator": generators[0]}
            texts = {
                name: [value] * len(prompts)
                for name, value in asked.items()
                if "prompt" in name and isinstance(value, str)
            }
            return {**asked, **texts, "prompt": list(prompts), "generator": generators}

        return arguments

    @property
    def _answers(self) -> bool:
        """False for a rank whose pictures nobody wants: the first of its group has the same."""
        return self._parallel is None or self._parallel.index == 0

    def _agree_on_ends(self, request_ids: Sequence[str]) -> None:
        """Have the ranks of the group find out if a request failed on one of them alone. Raises: EngineDeadError."""
        lockstep = self._parallel.lockstep if self._parallel is not None else None
        if lockstep is None:
            return
        scripts = [self._hub.scripts[request_id] for request_id in request_ids]
        ended = {s.request_id: "" if s.error is None else in_words(s.error) for s in scripts if s.done}
        if ended:
            lockstep.vote(ended)

    def _try_spread(self, spread: CfgTarget, arguments: dict[str, Any], want: Any) -> Any:
        """What the ranks make of a small request together.

        Raises: SpecError, on every rank, when the model can't be shared, or comes out otherwise.
        """
        why = spread.obstacle
        if not why:
            again = _reseeded(arguments)
            script = self._open("trial", again, again["generator"])
            self._hub.run(["trial"])
            result, error = script.result, script.error
            self._hub.forget("trial")
            why = "" if error is None else f"a small request failed: {words_of(error)}"
            why = why or differs(self._output.convert(result, None), self._output.convert(want, None))
        if not spread.agreed(why == ""):
            expected = f"1 for this model: {why or 'another rank found so'}"
            raise SpecError([Fault("spec.parallelism.cfg", expected, str(spread.size))])
        return result

    def _prove_replay(self, arguments: dict[str, Any], want: Any) -> str:
        """Why a request can't be resumed bitwise or decoded at any step; "" if it can. `want`: what it gives whole."""
        if self._overlay is not None:
            return "it puts attention processors on the model"
        try:
            return self._replay_fault(arguments, want)
        except Exception as error:  # noqa: BLE001 - that it can't be replayed is a finding
            return f"a replay failed: {words_of(error)}"[:300]
        finally:
            self._hub.forget("replay")

    def _replay_fault(self, arguments: dict[str, Any], want: Any) -> str:
        """Run, take checkpoints in the middle and at the end, and play both again; what differs, or ""."""
        again = _reseeded(arguments)
        script = self._open("replay", again, again["generator"])
        recording = script.watcher
        assert isinstance(recording, Recording)
        self._hub.tick(["replay"])
        self._one_step_calls = recording.first_step_calls
        middle = recording.checkpoint(script)
        while not script.done and (script.steps < STEPS or self._hub.phase(script) < DECODE):
            self._hub.serve([script])
        # without a component call after the last step there is no place to take one
        last = None if script.done else recording.checkpoint(script)
        self._hub.forget("replay")
        if fault := self._replay_differs(arguments, middle, want, decode_only=False):
            return f"a request resumed {fault}"
        if last is not None and (fault := self._replay_differs(arguments, last, want, decode_only=True)):
            return f"a request decoded from its last step {fault}"
        return ""

    def _replay_differs(
        self, arguments: dict[str, Any], start: Checkpoint, want: Any, *, decode_only: bool
    ) -> str:
        again = _reseeded(arguments)
        script = self._open("replay", again, again["generator"], start, decode_only=decode_only)
        self._hub.run(["replay"])
        result, error = script.result, script.error
        self._hub.forget("replay")
        if error is not None:
            return f"failed: {words_of(error)}"[:300]
        same = self._output.convert(result, None) == self._output.convert(want, None)
        return "" if same else "gives another picture"


def _reseeded(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with a fresh generator: a generator is used up by a run."""
    old = arguments["generator"]
    return {**arguments, "generator": torch.Generator(old.device).manual_seed(old.initial_seed())}


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
