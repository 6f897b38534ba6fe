"""The step protocol of serving engines as views of the park points: an unmodified pipeline, advanced phase by phase.

`prepare_encode` runs to the first denoiser call, `denoise_step` to the scheduler's step, `step_scheduler` through it,
`post_decode` to the result. The hub's tick makes the same moves for many requests at once; this is for whoever wants
to hold one in hand.
"""

from __future__ import annotations

from typing import Any

import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.runner.hub import DECODE, DENOISE, PREPARE, STEP, Hub
from stage_runtime.scripts.script import Script


class StepWalk:
    """One request's script on a hub, walked by hand. Raises the pipeline's own error where it occurs."""

    def __init__(self, hub: Hub, script: Script) -> None:
        self._hub, self._script = hub, script
        hub.add(script)

    @property
    def steps(self) -> int:
        """Denoise steps done."""
        return self._script.steps

    @property
    def denoised(self) -> bool:
        """True when no denoiser call is pending any more."""
        return self._script.done or self._hub.phase(self._script) == DECODE

    def prepare_encode(self) -> None:
        """Encode the prompt and make the first latents, once. Raises: InternalError the second time."""
        if self._script.started:
            raise InternalError(f"request {self._script.request_id} is prepared already")
        with torch.no_grad():
            self._script.start()
        self._serve_while(PREPARE)

    def denoise_step(self) -> int:
        """The denoiser's answers for one step; returns how many calls it took (two with sequential guidance)."""
        return self._serve_while(DENOISE)

    def step_scheduler(self) -> None:
        """Move the latents by one step."""
        self._serve_while(STEP)

    def post_decode(self) -> Any:
        """The pipeline's result. Raises InternalError when steps are left."""
        if not self.denoised:
            raise InternalError(f"request {self._script.request_id} has denoise steps left")
        self._serve_while(DECODE)
        result = self._script.result
        self._hub.forget(self._script.request_id)
        return result

    def _serve_while(self, phase: int) -> int:
        calls = 0
        while not self._script.done and self._hub.phase(self._script) == phase:
            self._hub.serve([self._script])
            calls += 1
        if self._script.error is not None:
            raise self._script.error
        return calls
