"""Opens scripts on a hub: a request's own, those of its previews, and those that try the model at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from stage_runtime.core.request import Request
from stage_runtime.runner.hub import Hub
from stage_runtime.scripts.private_pipeline import open_script
from stage_runtime.scripts.progress import SCHEDULER_STEPS, LoopPlan, Progress
from stage_runtime.scripts.replay import Checkpoint, Recording, can_interrupt
from stage_runtime.scripts.script import Script

STEPS_ARGUMENTS: Final = ("num_inference_steps", "decoder_num_inference_steps")
"""What pipelines call the number of steps."""


class Attendant(Protocol):
    """Something that looks after scripts, from before each begins until it is forgotten."""

    def attend(self, script: Script, request: Request | None) -> None:
        """`script` is about to begin; `request` is None for one that the runtime makes for itself."""

    def forget(self, request_id: str) -> None:
        """It has ended, however it did."""

    def held(self) -> dict[str, int]:
        """What is kept, by kind."""

    def close(self) -> None:
        """No script comes any more."""


@dataclass(slots=True)
class ScriptFactory:
    """Makes scripts of one pipeline. `arguments` ask it for the result in the format that is wanted."""

    pipeline: Any
    hub: Hub
    arguments: Mapping[str, Any]
    attendants: Sequence[Attendant] = ()
    records: bool = True
    """Scripts are recorded: true while that is being proven, then as the proof found."""
    plan: LoopPlan = SCHEDULER_STEPS
    """What the pipeline's loops are, as the probe found."""
    one_step_calls: int = 0
    """Component calls up to the end of a first step, as the proof found."""

    def open(
        self,
        name: str,
        arguments: Mapping[str, Any],
        generator: torch.Generator,
        start: Checkpoint | None = None,
        *,
        decode_only: bool = False,
        request: Request | None = None,
    ) -> Script:
        """A script on the hub, that goes on from `start`. `decode_only` decodes its latents and does nothing else."""
        asked = {**arguments, **self.arguments, "generator": generator}
        steps_argument = next(
            (argument for argument in STEPS_ARGUMENTS if argument in asked), STEPS_ARGUMENTS[0]
        )
        if decode_only and start is not None and not can_interrupt(self.pipeline):
            asked[steps_argument], start = 1, start.shortened(self.one_step_calls)
        steps = request.steps if request is not None else asked.get(steps_argument, 0)
        script = open_script(self.pipeline, name, asked, Progress(self.plan, steps))
        if self.records:
            script.watcher = Recording(self.hub.denoisers, [generator], start, decode_only=decode_only)
            script.replays = start.turns if start is not None else 0
        for attendant in self.attendants:
            attendant.attend(script, request)
        self.hub.add(script)
        return script

    def forget(self, name: str) -> None:
        """End a script wherever it is, and drop all that is kept for it. An unknown name is no error."""
        self.hub.forget(name)
        for attendant in self.attendants:
            attendant.forget(name)

    def held(self) -> dict[str, int]:
        """What is kept for scripts, by kind; all 0 at rest."""
        overlay = self.hub.overlay
        found = {"scripts": len(self.hub.scripts), "processors": 0 if overlay is None else len(overlay)}
        for attendant in self.attendants:
            found |= attendant.held()
        return found

    def close(self) -> None:
        """Let go of the pipeline, and of who looked after its scripts. All of them are forgotten by now."""
        for attendant in self.attendants:
            attendant.close()
        self.attendants, self.pipeline = (), None
