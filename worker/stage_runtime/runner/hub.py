"""The rendezvous: collects the pending calls of all requests, has targets answer them, resumes each with its rows.

One code path for one request and for many, and for both modes. Calls are taken in a fixed order, never by the clock,
so that ranks that run the same wave make the same calls.

NB: grad mode belongs to the thread, and pipelines switch it off and back on while they are interleaved. So the hub
holds `no_grad` around all that it runs, the end of a script too; nested ones are then harmless, and none leaks out.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.scripts.isolation import ProcessorOverlay
from stage_runtime.scripts.script import AT_STEP, Call, Script
from stage_runtime.scripts.target import Target

_NOTHING: Final[AbstractContextManager[None]] = nullcontext()

PREPARE: Final = 0
DENOISE: Final = 1
STEP: Final = 2
DECODE: Final = 3
"""What a script waits for, in the order in which a tick serves it: newcomers prepare first, so that their first
denoiser call joins the others'; those that finish decode last, together."""


@dataclass(slots=True)
class Hub:
    """Owns the scripts of running requests.

    `denoisers` are the components whose calls make the steps, as found by the probe. `counts_steps` is False for a
    pipeline that never calls `scheduler.step`: there each denoiser call is a step.
    """

    target: Target
    denoisers: Collection[str]
    counts_steps: bool = True
    overlay: ProcessorOverlay | None = None
    """Set for a pipeline that puts attention processors on the shared model."""
    scripts: dict[str, Script] = field(default_factory=dict)

    def add(self, script: Script) -> None:
        """Take a script; it starts with the first tick that names it."""
        if script.request_id in self.scripts:
            raise InternalError(f"request {script.request_id} has a script already")
        self.scripts[script.request_id] = script

    @torch.no_grad()
    def forget(self, request_id: str) -> None:
        """End a script wherever it is and drop all that is kept for it. An unknown id is no error."""
        script = self.scripts.pop(request_id, None)
        if script is not None:
            with self._as(script):
                script.abort()
            script.release()
            self.target.forget(request_id)

    def phase(self, script: Script) -> int:
        """What the script waits for: PREPARE, DENOISE, STEP or DECODE."""
        pending = script.pending
        if pending is AT_STEP:
            return STEP
        if isinstance(pending, Call) and pending.component in self.denoisers and pending.method == "forward":
            return DENOISE
        return PREPARE if script.steps == 0 else DECODE

    @torch.no_grad()
    def tick(self, request_ids: Iterable[str]) -> None:
        """Advance each request by one denoise step: newcomers prepare before it, finishers decode after it."""
        movers = [self.scripts[request_id] for request_id in request_ids]
        before = {script.request_id: max(script.steps, script.replays) for script in movers}
        for script in movers:
            if not script.started:
                with self._as(script):
                    script.start()
        while movers := [s for s in movers if not s.done and not self._has_stepped(s, before[s.request_id])]:
            self._serve(movers)

    @torch.no_grad()
    def run(self, request_ids: Iterable[str]) -> None:
        """Run these to their end; those that are ready early wait, so that all decode together."""
        movers = [self.scripts[request_id] for request_id in request_ids]
        for script in movers:
            if not script.started:
                with self._as(script):
                    script.start()
        while movers := [script for script in movers if not script.done]:
            self._serve(movers)

    @torch.no_grad()
    def serve(self, scripts: Sequence[Script]) -> None:
        """Answer the pending calls of those scripts that are earliest in the order of phases."""
        self._serve(scripts)

    def _serve(self, scripts: Sequence[Script]) -> None:
        first, chosen = self._earliest(scripts)
        now_s = time.perf_counter()
        if first == STEP:
            for script in chosen:
                script.denoised_s = now_s
                with self._as(script):
                    script.resume()
        else:
            if first == DENOISE:
                for script in chosen:
                    script.prepared_s = script.prepared_s or now_s
            self._answer([script.pending for script in chosen if isinstance(script.pending, Call)])
            if first == DENOISE and not self.counts_steps:
                for script in chosen:
                    script.steps += 1

    def _earliest(self, scripts: Sequence[Script]) -> tuple[int, Sequence[Script]]:
        """The first phase that any of them waits in, and those that do."""
        if len(scripts) == 1:
            return self.phase(scripts[0]), scripts
        phases = [self.phase(script) for script in scripts]
        first = min(phases)
        return first, [script for script, phase in zip(scripts, phases, strict=True) if phase == first]

    def _answer(self, calls: Sequence[Call]) -> None:
        real = []
        for call in calls:
            watcher = call.script.watcher
            replayed = watcher.replayed(call) if watcher is not None else None
            if replayed is None:
                real.append(call)
            else:
                self._resume(call, replayed[0])
        missing = len(real)
        if missing:
            self.target.submit(real)
        while missing:
            for call, value, error in self.target.poll():
                missing -= 1
                if error is not None:
                    with self._as(call.script):
                        call.script.throw(error)
                    continue
                if call.script.watcher is not None:
                    call.script.watcher.called(call, value)
                self._resume(call, value)

    def _resume(self, call: Call, value: object) -> None:
        with self._as(call.script):
            call.script.resume(value)

    def _as(self, script: Script) -> AbstractContextManager[None]:
        """Around running a script's own code."""
        return _NOTHING if self.overlay is None else self.overlay.inside(script.request_id)

    def _has_stepped(self, script: Script, before: int) -> bool:
        return script.steps > before and self.phase(script) == DENOISE
