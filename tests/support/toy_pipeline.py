"""A diffusers pipeline in miniature, for what the shipped classes show only by accident.

A real DiffusionPipeline with a real ModelMixin and a real scheduler: prompts of any length become one vector, the
latents are pictures of 4×4 pixels. Variants of it do, one each, what pipelines in the wild do.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler, ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.utils import BaseOutput

BASE: dict[str, Any] = {"size": 4}


@dataclass
class ToyOutput(BaseOutput):
    """Pictures as numpy-shaped floats in [0, 1], (n, height, width, 3)."""

    images: Any


class ToyDenoiser(ModelMixin, ConfigMixin):
    """Noise from latents, time and prompt; each row on its own."""

    @register_to_config
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.mix = torch.nn.Linear(width, width)
        self.text = torch.nn.Linear(4, width)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: (n, 3, 4, 4), (n,), (n, 4) → (n, 3, 4, 4)."""
        flat = hidden_states.flatten(1)
        return (torch.tanh(self.mix(flat) + self.text(prompt_embeds)) * timestep[:, None]).view_as(
            hidden_states
        )


class WritingDenoiser(ToyDenoiser):
    """Edits an argument in place, as models with a key/value cache do."""

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        result = super().forward(hidden_states, timestep, prompt_embeds)
        prompt_embeds.mul_(0.9)
        return result


class RememberingDenoiser(ToyDenoiser):
    """Keeps something from one call to the next."""

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(hidden_states, timestep, prompt_embeds) + self.calls


class MixingDenoiser(ToyDenoiser):
    """Lets rows see each other, so that merged calls answer differently."""

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        return super().forward(hidden_states, timestep, prompt_embeds) + hidden_states.mean(0, keepdim=True)


class PickyDenoiser(ToyDenoiser):
    """Fails on one prompt, alone or in company."""

    POISON = "poison"

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        if any(torch.equal(row, embed(self.POISON)) for row in prompt_embeds):
            raise RuntimeError("this prompt is poison")
        return super().forward(hidden_states, timestep, prompt_embeds)


def embed(prompt: str) -> torch.Tensor:
    """A vector for a prompt."""
    generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
    return torch.randn(4, generator=generator)


class ToyPipeline(DiffusionPipeline):
    """Prompts to pictures."""

    def __init__(self, transformer: ToyDenoiser, scheduler: FlowMatchEulerDiscreteScheduler) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    @property
    def interrupt(self) -> bool:
        """As the shipped pipelines have it."""
        return self._interrupt

    def check_inputs(self, prompt: Any, size: int) -> None:
        """As the shipped pipelines have it."""
        if size != 4:
            raise ValueError(f"`size` has to be 4 but is {size}")

    @torch.no_grad()
    def __call__(
        self,
        prompt: Any = None,
        num_inference_steps: int = 3,
        size: int = 4,
        generator: Any = None,
        output_type: str = "np",
    ) -> ToyOutput:
        """Make pictures."""
        self._interrupt = False
        self.check_inputs(prompt, size)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        generators = generator if isinstance(generator, list) else [generator]
        embeds = torch.stack([embed(text) for text in prompts])
        latents = torch.stack([torch.randn(3, size, size, generator=one) for one in generators])
        scheduler = self.prepare_scheduler()
        scheduler.set_timesteps(num_inference_steps)
        latents = self.denoise(scheduler, latents, embeds)
        self.maybe_free_model_hooks()
        pictures = torch.sigmoid(latents).permute(0, 2, 3, 1)
        return ToyOutput(latents if output_type == "latent" else pictures.numpy())

    def prepare_scheduler(self) -> Any:
        """The scheduler of this call."""
        return self.scheduler

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """The loop."""
        for t in scheduler.timesteps:
            if self.interrupt:
                continue
            noise = self.transformer(latents, t.expand(len(latents)) / 1000, embeds)
            latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents


class CopyingPipeline(ToyPipeline):
    """Steps with a deep copy of its scheduler, and insists on the scheduler's exact class."""

    def prepare_scheduler(self) -> Any:
        assert type(self.scheduler) is FlowMatchEulerDiscreteScheduler
        return copy.deepcopy(self.scheduler)


class SettingPipeline(ToyPipeline):
    """Sets an attribute on the shared denoiser."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        self.transformer.current_prompt = "mine"
        return super().denoise(scheduler, latents, embeds)


class CatchingPipeline(ToyPipeline):
    """Catches every Exception, and cleans up when it ends."""

    ended: list[str] = []  # noqa: RUF012 - shared by design: the test looks in from outside

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        while True:
            try:
                return super().denoise(scheduler, latents, embeds)
            except Exception:  # noqa: BLE001 - what some pipelines do
                continue
            finally:
                self.ended.append("cleaned up")


class StaticPipeline(ToyPipeline):
    """Calls no component at all."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        return latents


class SteplessPipeline(ToyPipeline):
    """Never calls the scheduler's step, as consistency models may."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        for t in scheduler.timesteps:
            latents = latents - 0.1 * self.transformer(latents, t.expand(len(latents)) / 1000, embeds)
        return latents


class OneGoPipeline(ToyPipeline):
    """Asks its denoiser once, however many steps it is told to make."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        return latents - self.transformer(latents, torch.ones(len(latents)), embeds)


class OuterPipeline(DiffusionPipeline):
    """A pipeline that holds another, as the combined pipelines do."""

    def __init__(self, transformer: ToyDenoiser, scheduler: FlowMatchEulerDiscreteScheduler) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.inner = ToyPipeline(transformer, scheduler)

    def __call__(self, **arguments: Any) -> ToyOutput:
        """What the inner one makes."""
        return self.inner(**arguments)


def toy(pipeline: type[DiffusionPipeline] = ToyPipeline, denoiser: type[ToyDenoiser] = ToyDenoiser) -> Any:
    """A pipeline of these classes, ready to run."""
    return pipeline(denoiser().eval(), FlowMatchEulerDiscreteScheduler())
