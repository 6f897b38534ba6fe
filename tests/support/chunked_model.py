"""A step model that makes a clip frame by frame: each step finishes one, which is a chunk."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from stage_runtime.assemble_rank import step_runner
from stage_runtime.pipelines.families.digits.model import DigitsModel
from stage_runtime.pipelines.step_model import Newcomer, StepResult
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.step_runner import StepRunner

SIDE = 8
LARGE_SIDE = 128
"""Of frames of which a chunk is too large for a message."""
UNLUCKY = 13
"""A seed whose second frame can't be told of."""


@dataclass(frozen=True)
class ClipState:
    """The noise, and the frames that are done, (frames, 3, side, side)."""

    noise: torch.Tensor
    frames: torch.Tensor
    seed: int
    step: int
    steps: int


class ClipModel:
    """Frame k is the noise, blurred k times."""

    arguments: ClassVar[Collection[str]] = DigitsModel.arguments
    sample_rate = None

    def __init__(self, side: int = SIDE) -> None:
        self.side = side
        self.device = torch.device("cpu")
        self.blur = torch.nn.AvgPool2d(3, stride=1, padding=1)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: torch.device) -> Self:
        """There are no weights."""
        return cls()

    def prepare_encode(self, newcomers: Sequence[Newcomer]) -> list[ClipState]:
        """Noise of each one's own, and no frame."""
        return [
            ClipState(
                noise=torch.rand((3, self.side, self.side), generator=one.generator),
                frames=torch.zeros((0, 3, self.side, self.side)),
                seed=one.request.seed,
                step=0,
                steps=one.request.steps,
            )
            for one in newcomers
        ]

    def batch_key(self, state: ClipState) -> Hashable:
        """All fit."""
        return None

    def denoise_step(self, states: Sequence[ClipState]) -> torch.Tensor:
        """The next frame of each."""
        last = [state.frames[-1] if state.step else state.noise for state in states]
        return self.blur(torch.stack(last))

    def step_scheduler(self, states: Sequence[ClipState], prediction: torch.Tensor) -> list[ClipState]:
        """One frame more."""
        return [
            replace(state, frames=torch.cat([state.frames, frame[None]]), step=state.step + 1)
            for state, frame in zip(states, prediction, strict=True)
        ]

    def post_decode(self, states: Sequence[ClipState]) -> list[StepResult]:
        """The clip so far."""
        return [StepResult(frames=state.frames[None]) for state in states]

    def new_chunks(self, states: Sequence[ClipState]) -> list[StepResult | None]:
        """Each second step tells of the two frames since."""
        if any(state.seed == UNLUCKY and state.step == 2 for state in states):
            raise RuntimeError("a frame was lost")
        return [
            StepResult(frames=state.frames[-2:][None]) if state.step % 2 == 0 else None for state in states
        ]


class ClipRunner(StepRunner):
    """Runs a model of large clips, whatever the stage has loaded; for ranks that are real otherwise."""

    def __new__(
        cls, model: Any, ask: Any, *, on_fault: Any, sample_rate: Any, options: RunnerOptions
    ) -> StepRunner:  # type: ignore[misc]
        return step_runner(ClipModel(LARGE_SIDE), ask, on_fault=on_fault, options=options)  # type: ignore[arg-type]
