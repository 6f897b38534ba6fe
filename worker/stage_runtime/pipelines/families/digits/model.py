"""The digits model by the explicit step protocol: rectified flow on pixels, classifier-free guidance, Euler steps.

A picture at time t is (1 − t) · picture + t · noise; the network says noise minus picture, and a step goes down the
time along it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

import torch
from torch import Tensor

from stage_runtime.pipelines.families.digits.network import CHANNELS, DigitsNetwork, NetworkConfig
from stage_runtime.pipelines.families.digits.prompts import NOTHING, Asked, read
from stage_runtime.pipelines.step_loader import load_network
from stage_runtime.pipelines.step_model import Newcomer, StepResult

SHIFT: Final = 2.0
"""Steps are shorter near the noise, where it is decided what is drawn, and longer near the picture."""


@dataclass(frozen=True, slots=True)
class DigitState:
    """One request's picture on its way. Never written to."""

    asked: Asked
    guidance: float
    noisy: Tensor
    """(1, 3, height, width), float32, values around -1..1."""
    times: tuple[float, ...]
    """From 1 down to 0, one more than there are steps."""
    step: int = 0
    clean: Tensor | None = None
    """What the last step took the finished picture for; like `noisy`."""

    @property
    def steps(self) -> int:
        """Denoise steps in all."""
        return len(self.times) - 1

    @property
    def guided(self) -> bool:
        """True when the network is asked a second time, without digit and colour."""
        return self.guidance > 1


class DigitsModel:
    """Implements `StepModel`."""

    arguments: ClassVar[Collection[str]] = (
        "prompt",
        "height",
        "width",
        "guidance_scale",
        "num_inference_steps",
    )
    sample_rate: int | None = None

    def __init__(self, denoiser: DigitsNetwork, *, dtype: torch.dtype, device: torch.device) -> None:
        self.denoiser, self.dtype, self.device = denoiser, dtype, device

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, device: torch.device) -> Self:
        """Raises: ModelError for files that are missing, broken or of another network."""
        network = load_network(
            folder / "denoiser",
            lambda config: DigitsNetwork(NetworkConfig(**config)),
            dtype=dtype,
            device=device,
        )
        return cls(network, dtype=dtype, device=device)

    def prepare_encode(self, newcomers: Sequence[Newcomer]) -> list[DigitState]:
        """Raises: InvalidRequest for a prompt with other words than it knows."""
        return [self._start(newcomer) for newcomer in newcomers]

    def batch_key(self, state: DigitState) -> Hashable:
        """Pictures of one size go together."""
        return state.noisy.shape

    def denoise_step(self, states: Sequence[DigitState]) -> Tensor:
        """The guided velocity of each: (len(states), 3, height, width), float32."""
        guided = [place for place, state in enumerate(states) if state.guided]
        told = [state.asked for state in states] + [NOTHING for _ in guided]
        rows = [*range(len(states)), *guided]
        noisy = torch.cat([states[row].noisy for row in rows]).to(self.dtype)
        time = torch.tensor([states[row].times[states[row].step] for row in rows], device=self.device)
        digit, colour = torch.tensor(told, device=self.device).unbind(1)
        velocity = self.denoiser(noisy, time, digit, colour).float()
        if not guided:
            return velocity
        told_one, untold = velocity[: len(states)], velocity[len(states) :]
        scale = torch.tensor([states[place].guidance for place in guided], device=self.device)
        mixed = untold + scale[:, None, None, None] * (told_one[guided] - untold)
        return told_one.index_copy(0, torch.tensor(guided, device=self.device), mixed)

    def step_scheduler(self, states: Sequence[DigitState], prediction: Tensor) -> list[DigitState]:
        """One Euler step each, on its own time."""
        return [
            self._stepped(state, velocity)
            for state, velocity in zip(states, prediction.split(1), strict=True)
        ]

    def post_decode(self, states: Sequence[DigitState]) -> list[StepResult]:
        """The picture that each is on its way to."""
        pictures = torch.cat([state.noisy if state.clean is None else state.clean for state in states])
        return [StepResult(images=one) for one in (pictures / 2 + 0.5).clamp(0, 1).split(1)]

    def _start(self, newcomer: Newcomer) -> DigitState:
        request, generator = newcomer
        arguments = request.arguments
        shape = (1, CHANNELS, int(arguments["height"] or 0), int(arguments["width"] or 0))
        even = [1 - i / request.steps for i in range(request.steps + 1)]
        return DigitState(
            asked=read(str(arguments["prompt"])),
            guidance=float(arguments["guidance_scale"] or 0),
            noisy=torch.randn(shape, generator=generator, device=self.device),
            times=tuple(SHIFT * t / (1 + (SHIFT - 1) * t) for t in even),
        )

    @staticmethod
    def _stepped(state: DigitState, velocity: Tensor) -> DigitState:
        now, then = state.times[state.step], state.times[state.step + 1]
        return replace(
            state,
            noisy=state.noisy + (then - now) * velocity,
            step=state.step + 1,
            clean=state.noisy - now * velocity,
        )
