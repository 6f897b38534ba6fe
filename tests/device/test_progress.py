"""A step is one of the pipeline's own loop: progress ends where a client's steps do, and previews are of its turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from stage_runtime.core.outcome import Completed, Progressed
from stage_runtime.runner.output import PIXELS
from stage_runtime.scripts.progress import LoopPlan, Progress, Unit
from support.hub_stage import HubStage, ask, plain
from support.interrupted import interrupted
from support.tiny_models import TinyModel, load_plain, reference_arguments
from support.toy_pipeline import BASE, ToyDenoiser, ToyPipeline, toy

pytest_plugins = ("support.tiny_fixtures",)

SCHEDULERS = (
    "DDIMScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)


@pytest.fixture(scope="module")
def sdxl(tiny_model: TinyModel) -> tuple[Any, dict[str, Any]]:
    arguments = reference_arguments("stable-diffusion-xl")
    base = {key: value for key, value in arguments.items() if key != "num_inference_steps"}
    return load_plain(tiny_model("stable-diffusion-xl")), base


# of the schedulers' own code under numpy 2
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_steps_and_previews_are_those_of_the_pipelines_loop_whatever_its_scheduler_does(
    name: str, sdxl: tuple[Any, dict[str, Any]]
) -> None:
    pipeline, base = sdxl
    own = {"skip_prk_steps": True} if name == "PNDMScheduler" else {}
    pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config, **own)
    stage = HubStage.of(pipeline, base, output=PIXELS)
    assert stage.capability.previews, stage.capability.previews_reason
    request = ask(base, "a", "a green square", steps=5, seed=3, preview_steps=(2, 3))
    stage.arrive(request, ask(base, "b", "a cat", steps=3, seed=4))
    done = stage.run()
    told = [one for one in stage.told if isinstance(one, Progressed) and one.request_id == "a"]
    assert [one.step for one in told] == [1, 2, 3, 4]
    assert [end.steps for end in done.values() if isinstance(end, Completed)] == [3, 5]
    alone = HubStage.of(pipeline, base, output=PIXELS)
    alone.arrive(request)
    alone.run()
    shown = {one.step: one.preview for one in alone.told if isinstance(one, Progressed) and one.preview}
    assert sorted(shown) == [2, 3]
    for step, preview in shown.items():
        want = (interrupted(pipeline, request, step)[0] * 255).round().astype(np.uint8)
        assert preview.data == want.tobytes(), step


class BarPipeline(ToyPipeline):
    """Turns a loop with a bar in which the scheduler steps twice."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        for t in self.turns(scheduler.timesteps):
            if self.interrupt:
                continue
            for _ in range(2):
                scheduler._step_index = None
                noise = self.transformer(latents, t.expand(len(latents)) / 1000, embeds)
                latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents

    def turns(self, timesteps: Any) -> Iterator[Any]:
        yield from self.progress_bar(timesteps)


class UpdatedBarPipeline(BarPipeline):
    """Moves its bar by hand."""

    def turns(self, timesteps: Any) -> Iterator[Any]:
        with self.progress_bar(total=len(timesteps)) as bar:
            for t in timesteps:
                yield t
                bar.set_postfix(loss=0)
                bar.update()


class LeftBarPipeline(BarPipeline):
    """Never closes it."""

    def turns(self, timesteps: Any) -> Iterator[Any]:
        bar = self.progress_bar(total=len(timesteps))
        for t in timesteps:
            yield t
            bar.update()


class PriorPipeline(UpdatedBarPipeline):
    """Has a loop of its own before, of as many turns whatever is asked for."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        with self.progress_bar(total=3) as bar:
            for _ in range(3):
                latents = latents + 0.01 * self.transformer(latents, torch.ones(len(latents)), embeds)
                bar.update()
        return super().denoise(scheduler, latents, embeds)


class ChunkPipeline(UpdatedBarPipeline):
    """Turns the whole loop for each of two parts."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            latents = super().denoise(scheduler, latents, embeds)
        return latents


class BesidePipeline(UpdatedBarPipeline):
    """Calls another component before its denoiser in each turn."""

    def __init__(self, transformer: Any, scheduler: Any, control: ToyDenoiser) -> None:
        super().__init__(transformer, scheduler)
        self.register_modules(control=control)

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        for t in self.turns(scheduler.timesteps):
            if self.interrupt:
                continue
            scale = t.expand(len(latents)) / 1000
            hint = self.control(latents, scale, embeds)
            noise = self.transformer(latents, scale, embeds) + 0.1 * hint
            latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        (BarPipeline, 5),
        (UpdatedBarPipeline, 5),
        (LeftBarPipeline, 5),
        (PriorPipeline, 8),
        (ChunkPipeline, 10),
        (ToyPipeline, 5),
    ],
)
def test_progress_reaches_its_total_with_the_last_turn_and_never_passes_it(
    kind: type[ToyPipeline], turns: int
) -> None:
    pipeline = toy(kind)
    stage = HubStage.of(pipeline, BASE)
    request = ask(BASE, "a", "a cat", steps=5, seed=1)
    stage.arrive(request)
    got = stage.outputs()["a"]
    assert np.array_equal(got, plain(pipeline, request))
    told = [one.step for one in stage.told if isinstance(one, Progressed)]
    assert told == sorted(set(told))
    assert set(told) == {1, 2, 3, 4}
    (end,) = (one for one in stage.told if isinstance(one, Completed))
    assert end.steps == 5
    assert stage.ticks == turns + 1  # the last one finds nothing left


def test_a_preview_is_drawn_where_another_component_runs_before_the_denoiser() -> None:
    pipeline = BesidePipeline(
        ToyDenoiser().eval(), diffusers.FlowMatchEulerDiscreteScheduler(), ToyDenoiser().eval()
    )
    stage = HubStage.of(pipeline, BASE, output=PIXELS)
    assert stage.capability.previews, stage.capability.previews_reason
    assert stage.capability.resumable
    request = ask(BASE, "a", "a cat", steps=4, seed=1, preview_steps=(1, 2, 3))
    stage.arrive(request)
    stage.run()
    shown = {one.step: one.preview for one in stage.told if isinstance(one, Progressed) and one.preview}
    assert sorted(shown) == [1, 2, 3]
    for step, preview in shown.items():
        want = (interrupted(pipeline, request, step)[0] * 255).round().astype(np.uint8)
        assert preview.data == want.tobytes()


class ForgetfulPipeline(ToyPipeline):
    """Shows what it has only where nothing is left to do: an interrupted one is black."""

    def maybe_free_model_hooks(self) -> None:
        self.black = self.interrupt

    def __call__(self, prompt: Any = None, **arguments: Any) -> Any:
        made = super().__call__(prompt, **arguments)
        return type(made)(made.images * np.random.rand()) if self.black else made


def test_previews_that_can_not_be_relied_on_are_none_though_a_request_can_be_resumed() -> None:
    stage = HubStage.of(toy(ForgetfulPipeline), BASE, output=PIXELS)
    assert stage.capability.resumable
    assert not stage.capability.previews
    assert "gives another picture" in stage.capability.previews_reason
    stage.arrive(ask(BASE, "a", "a cat", steps=4, seed=1, preview_steps=(2,)))
    assert isinstance(stage.run()["a"], Completed)
    assert not any(one.preview for one in stage.told if isinstance(one, Progressed))


@pytest.mark.parametrize("asked", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(
    "loops", [((0, 1),), ((-1, 2),), ((25, 0), (0, 1)), ((0, 1), (0, 1)), ((-1, 1),), ()]
)
def test_shares_of_loops_grow_to_what_was_asked_for(asked: int, loops: tuple[tuple[int, int], ...]) -> None:
    progress = Progress(LoopPlan(Unit.LOOP, loops), asked)
    seen = []
    for fixed, slope in loops or ((0, 1), (0, 1)):
        loop = progress.opened()
        for _ in range(fixed + slope * asked):
            progress.turned(loop, 1)
            seen.append(progress.steps)
        progress.closed()
    assert seen == sorted(seen)
    assert progress.steps == asked or loops == ((-1, 1),)
    assert not progress.in_loop


def test_what_loops_are_follows_from_two_runs() -> None:
    measured = LoopPlan.measured(Unit.LOOP, (2, [25, 2, 3]), (4, [25, 4, 7]))
    assert measured.loops == ((25, 0), (0, 1), (-1, 2))
    assert [measured.counts(loop) for loop in range(4)] == [False, True, True, True]
    assert measured.turns(10) == 10 + 19
    assert LoopPlan.measured(Unit.LOOP, (2, [2]), (4, [4, 4])).loops == ()
