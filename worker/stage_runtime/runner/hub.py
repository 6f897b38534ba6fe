"""The rendezvous: collects the pending calls of all requests, has targets answer them, resumes each with its rows.

One code path for one request and for many, and for both modes. Calls are taken in a fixed order, never by the clock,
so that ranks that run the same wave make the same calls. Nobody is waited for in particular: a call may stay
unanswered over any number of ticks, and whoever is answered goes on.

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
    pipeline that neither shows a progress bar nor calls `scheduler.step`: there each denoiser call is a turn.
    """

    target: Target
    denoisers: Collection[str]
    counts_steps: bool = True
    overlay: ProcessorOverlay | None = None
    """Set for a pipeline that puts attention processors on the shared model."""
    scripts: dict[str, Script] = field(default_factory=dict)
    _asked: dict[str, Call] = field(default_factory=dict)
    """Calls that the target has and has not answered yet, by request: a script waits for one at a time."""

    def add(self, script: Script) -> None:
        """Take a script; it starts with the first tick that names it. Raises: InternalError for an id that is here."""
        if script.request_id in self.scripts:
            raise InternalError(f"request {script.request_id} has a script already")
        self.scripts[script.request_id] = script

    @torch.no_grad()
    def forget(self, request_id: str) -> None:
        """End a script wherever it is and drop all that is kept for it. An unknown id is no error."""
        script = self.scripts.pop(request_id, None)
        if script is not None:
            self._asked.pop(request_id, None)
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
        # Beside the denoiser other components may be called in a loop, and before the next one.
        return PREPARE if script.turns == 0 or script.progress.in_loop else DECODE

    @torch.no_grad()
    def tick(self, request_ids: Iterable[str]) -> bool:
        """Advance each request by one turn of its loop: newcomers prepare before it, finishers decode after it.

        Returns True when each has stepped or ended; False when those that are left wait for answers that are not
        there yet. They go on with the next tick.
        """
        movers = self._started(request_ids)
        before = {script.request_id: max(script.turns, script.replays) for script in movers}
        while movers := [s for s in movers if not s.done and not self._has_stepped(s, before[s.request_id])]:
            if not self._advance(movers):
                return False
        return True

    @torch.no_grad()
    def play(self, request_ids: Iterable[str]) -> bool:
        """Take these towards their end; those that are ready early wait, so that all decode together.

        Returns True when all have ended; False when those that are left wait for answers that are not there yet.
        """
        movers = self._started(request_ids)
        while movers := [script for script in movers if not script.done]:
            if not self._advance(movers):
                return False
        return True

    @torch.no_grad()
    def run(self, request_ids: Collection[str]) -> None:
        """As `play`, to the end, waiting for every answer; whoever serves the calls ends the wait."""
        while not self.play(request_ids):
            self.await_answer()

    @torch.no_grad()
    def serve(self, scripts: Sequence[Script]) -> None:
        """Have the pending calls answered of those scripts that are earliest in the order of phases."""
        self._advance(scripts)
        while any(script.request_id in self._asked for script in scripts):
            self.await_answer()

    @torch.no_grad()
    def await_answer(self) -> None:
        """Wait until a target has something to say. For whoever has nothing else to do, and no other to serve."""
        self._collect(None)

    def asks(self, script: Script) -> bool:
        """True while the script waits for a target that has its call."""
        return script.request_id in self._asked

    def _started(self, request_ids: Iterable[str]) -> list[Script]:
        scripts = [self.scripts[request_id] for request_id in request_ids]
        for script in scripts:
            if not script.started:
                with self._as(script):
                    script.start()
        return scripts

    def _advance(self, scripts: Sequence[Script]) -> bool:
        """One move of those that can: served, or answered. False when all of them wait, and nothing came."""
        asked = self._asked
        ready = [script for script in scripts if script.request_id not in asked] if asked else scripts
        if ready:
            self._serve(ready)
        return (self._collect(0.0) if asked else False) or bool(ready)

    def _serve(self, scripts: Sequence[Script]) -> None:
        first, chosen = self._earliest(scripts)
        now_s = time.perf_counter()
        if first == STEP:
            for script in chosen:
                script.denoised_s = now_s
                with self._as(script):
                    script.resume()
            return
        if first == DENOISE:
            for script in chosen:
                script.prepared_s = script.prepared_s or now_s
        self._ask([script.pending for script in chosen if isinstance(script.pending, Call)])

    def _earliest(self, scripts: Sequence[Script]) -> tuple[int, Sequence[Script]]:
        """The first phase that any of them waits in, and those that do."""
        if len(scripts) == 1:
            return self.phase(scripts[0]), scripts
        phases = [self.phase(script) for script in scripts]
        first = min(phases)
        return first, [script for script, phase in zip(scripts, phases, strict=True) if phase == first]

    def _ask(self, calls: Sequence[Call]) -> None:
        real = []
        for call in calls:
            watcher = call.script.watcher
            replayed = watcher.replayed(call) if watcher is not None else None
            if replayed is None:
                self._asked[call.script.request_id] = call
                real.append(call)
            else:
                self._resume(call, replayed[0])
        if real:
            self.target.submit(real)

    def _collect(self, timeout_s: float | None) -> bool:
        """Hand out the answers that are there; whether there were any."""
        came = False
        for call, value, error in self.target.poll(timeout_s):
            came = True
            script = call.script
            if self._asked.get(script.request_id) is not call:
                continue  # its script was ended while it waited
            del self._asked[script.request_id]
            if error is not None:
                with self._as(script):
                    script.throw(error)
                continue
            if script.watcher is not None:
                script.watcher.called(call, value)
            self._resume(call, value)
        return came

    def _resume(self, call: Call, value: object) -> None:
        if not self.counts_steps and call.component in self.denoisers and call.method == "forward":
            call.script.progress.turn(0)
        with self._as(call.script):
            call.script.resume(value)

    def _as(self, script: Script) -> AbstractContextManager[None]:
        """Around running a script's own code."""
        return _NOTHING if self.overlay is None else self.overlay.inside(script.request_id)

    def _has_stepped(self, script: Script, before: int) -> bool:
        return script.turns > before and self.phase(script) == DENOISE
