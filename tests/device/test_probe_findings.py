"""What a model does at load that it isn't expected to is a reason to run alone, or not to start, and never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config

from stage_api.errors import SpecError
from stage_api.spec import Mode
from stage_runtime.assemble_rank import check_mode
from stage_runtime.core.errors import InvalidRequest, ModelError
from stage_runtime.core.outcome import Completed, Failed
from stage_runtime.runner.output import PIXELS
from stage_runtime.scripts.tensor_tree import relative_error
from support.hub_stage import HubStage, array, ask, plain
from support.toy_pipeline import (
    BASE,
    CopyingPipeline,
    OneGoPipeline,
    SteplessPipeline,
    ToyDenoiser,
    ToyPipeline,
    toy,
)


class OnceDenoiser(ToyDenoiser):
    """Takes each tensor of latents once, as those with a cache of keys do, and fails when it is asked again."""

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        seen = self.__dict__.setdefault("seen", set())
        key = (len(hidden_states), hidden_states.sum().item(), prompt_embeds.sum().item())
        if key in seen:
            raise IndexError("the cache is full")
        seen.add(key)
        return super().forward(hidden_states, timestep, prompt_embeds)


class DecodingPipeline(ToyPipeline):
    """Decodes its latents."""

    def __init__(self, transformer: Any, scheduler: Any, vae: Any) -> None:
        super().__init__(transformer, scheduler)
        self.register_modules(vae=vae)

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(super().denoise(scheduler, latents, embeds))


class TilingDecoder(ModelMixin, ConfigMixin):
    """Knows no other way than tiles."""

    tiled = False

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(1))

    def enable_tiling(self) -> None:
        self.tiled = True

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        if not self.tiled:
            raise NotImplementedError("decoding without tiling has not been implemented yet")
        return latents * self.gain


class UntiledDecoder(TilingDecoder):
    """Knows none at all."""

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no decoder here")


class FewStepsPipeline(ToyPipeline):
    """Takes so many steps alone, as distilled models do, or models with a schedule of their own."""

    allowed = range(0)

    def check_inputs(self, prompt: Any, size: int) -> None:
        super().check_inputs(prompt, size)
        if self.steps not in self.allowed:
            raise ValueError(f"{self.steps} steps are not supported")

    def __call__(self, prompt: Any = None, num_inference_steps: int = 3, **arguments: Any) -> Any:
        self.steps = num_inference_steps
        return super().__call__(prompt, num_inference_steps, **arguments)


class TwoStepsPipeline(FewStepsPipeline):
    allowed = range(2, 3)


class ManyStepsPipeline(FewStepsPipeline):
    allowed = range(47, 1000)


class NoStepsPipeline(FewStepsPipeline):
    """Takes none."""


class BarePipeline(ToyPipeline):
    """Uses what its module imports only where it is installed."""

    def prepare_scheduler(self) -> Any:
        return some_package.scheduler()  # type: ignore[name-defined]  # noqa: F821


class OwnSizePipeline(ToyPipeline):
    """Makes pictures of its own size, whatever it is asked for."""

    def __call__(self, prompt: Any = None, height: int = 4, width: int = 4, **arguments: Any) -> Any:
        return super().__call__(prompt, **arguments)


def completed(outcome: object) -> Completed:
    assert isinstance(outcome, Completed)
    return outcome


def decoding(vae: Any) -> Any:
    return DecodingPipeline(ToyDenoiser().eval(), FlowMatchEulerDiscreteScheduler(), vae.eval())


def test_a_model_that_can_not_be_asked_the_same_again_runs_alone_and_says_why() -> None:
    stage = HubStage.of(toy(ToyPipeline, OnceDenoiser), BASE)
    (found,) = stage.capability.components
    assert not found.merges
    assert "can't be asked the same again (IndexError: the cache is full" in found.reason
    assert not stage.capability.resumable
    stage.arrive(ask(BASE, "a", "a new prompt", steps=3, seed=77))
    assert isinstance(stage.run()["a"], Completed)


def test_a_decoder_that_knows_tiles_alone_gets_them() -> None:
    pipeline = decoding(TilingDecoder())
    stage = HubStage.of(pipeline, BASE)
    assert pipeline.vae.tiled
    stage.arrive(ask(BASE, "a", "a cat", steps=3))
    assert isinstance(stage.run()["a"], Completed)


def test_a_decoder_that_knows_no_way_does_not_start_with_its_own_words() -> None:
    with pytest.raises(ModelError, match=r"can't be run from a prompt, .*no decoder here"):
        HubStage.of(decoding(UntiledDecoder()), BASE)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.uint8, torch.complex64, torch.bfloat16], ids=str
)
def test_tensors_of_every_kind_can_be_compared(dtype: torch.dtype) -> None:
    one = torch.tensor([1, 0, 1]).to(dtype)
    other = torch.tensor([1, 1, 1]).to(dtype)
    assert relative_error(one, one) == 0.0
    assert relative_error(one, other) > 0.0


def test_a_pipeline_without_steps_is_served_in_request_mode_and_refused_in_step_mode() -> None:
    found = HubStage.of(toy(OneGoPipeline), BASE).capability
    check_mode(Mode.REQUEST, found)
    with pytest.raises(SpecError, match=r"spec\.engine\.mode: expected request, since OneGoPipeline has no"):
        check_mode(Mode.STEP, found)


@pytest.mark.parametrize("kind", [ToyPipeline, SteplessPipeline, CopyingPipeline])
def test_steps_that_are_seen_or_that_grow_with_those_asked_for_are_steps(kind: type[ToyPipeline]) -> None:
    check_mode(Mode.STEP, HubStage.of(toy(kind), BASE).capability)


@pytest.mark.parametrize(("kind", "steps", "wrong"), [(TwoStepsPipeline, 2, 3), (ManyStepsPipeline, 50, 4)])
def test_a_class_that_takes_some_numbers_of_steps_alone_is_served_those(
    kind: type[FewStepsPipeline], steps: int, wrong: int
) -> None:
    pipeline = toy(kind)
    stage = HubStage.of(pipeline, BASE)
    right = ask(BASE, "right", "a cat", steps=steps, seed=3)
    stage.arrive(right, ask(BASE, "wrong", "a cat", steps=wrong))
    ended = stage.run()
    assert np.array_equal(array(completed(ended["right"]).output), plain(pipeline, right))
    assert completed(ended["right"]).steps == steps
    refused = ended["wrong"]
    assert isinstance(refused, Failed)
    assert refused.status == InvalidRequest.status


def test_a_class_that_takes_no_number_of_steps_is_refused_with_what_few_of_them_said() -> None:
    with pytest.raises(ModelError, match=r"can't be run from a prompt, .*2 steps are not supported"):
        HubStage.of(toy(NoStepsPipeline), BASE)


def test_a_name_that_is_not_there_is_told_as_a_package_that_is_missing() -> None:
    with pytest.raises(ModelError, match="BarePipeline needs a package that is not installed: some_package"):
        HubStage.of(toy(BarePipeline), BASE)


@pytest.mark.parametrize("asked", [{"height": 8, "width": 4}, {"height": 4, "width": 8}])
def test_a_model_whose_pictures_have_not_the_size_asked_for_is_not_served(asked: dict[str, int]) -> None:
    with pytest.raises(ModelError, match=f"asked for {asked['width']}x{asked['height']} the model makes 4x4"):
        HubStage.of(toy(OwnSizePipeline), asked, output=PIXELS)
    HubStage.of(toy(OwnSizePipeline), {"height": 4, "width": 4}, output=PIXELS)
