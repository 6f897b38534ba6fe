"""What a scheduler can't do for a number of steps is the request's fault, with the field, and never a crash."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import diffusers
import pytest
import torch

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.outcome import Completed, Failed
from stage_runtime.scripts.intercepted import intercept, own_step
from support.hub_stage import HubStage, ask
from support.toy_pipeline import BASE, ToyDenoiser, ToyPipeline

pytestmark = [
    # of the schedulers' own code under numpy 2
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDIMScheduler": {},
    "DDPMScheduler": {},
    "DEISMultistepScheduler": {},
    "DPMSolverMultistepScheduler": {},
    "DPMSolverSinglestepScheduler": {},
    "EulerAncestralDiscreteScheduler": {},
    "EulerDiscreteScheduler": {},
    "FlowMatchEulerDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},
    "KDPM2AncestralDiscreteScheduler": {},
    "KDPM2DiscreteScheduler": {},
    "LCMScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "TCDScheduler": {},
    "UniPCMultistepScheduler": {},
}
SPACINGS = ("leading", "trailing", "linspace")
TRAINED = 100
COUNTS = (1, 2, 3, 33, 99, 100)


class Steps:
    """Carries a scheduler's steps out."""

    def step(self, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return own_step(scheduler, *args, **kwargs)


def made(name: str, **settings: Any) -> Any:
    kind = getattr(diffusers, name)
    known = kind().config
    return kind(**{key: value for key, value in (settings | SCHEDULERS[name]).items() if key in known})


def gone_through(scheduler: Any, count: int) -> torch.Tensor:
    """Set so many steps and make them, of numbers that hardly matter."""
    intercept(scheduler, Steps())
    scheduler.set_timesteps(count)
    latents = torch.ones(1, 4, 1, 1)
    taken = inspect.signature(scheduler.step).parameters
    options = {"generator": torch.Generator().manual_seed(0)} if "generator" in taken else {}
    for t in scheduler.timesteps:
        latents = scheduler.step(0.1 * latents, t, latents, **options, return_dict=False)[0]
    return latents


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_number_of_steps_is_made_or_refused_with_its_field(name: str, spacing: str, offset: int) -> None:
    scheduler = made(name, timestep_spacing=spacing, steps_offset=offset, num_train_timesteps=TRAINED)
    refused = {}
    for count in COUNTS:
        try:
            gone_through(copy.deepcopy(scheduler), count)
        except InvalidRequest as why:
            refused[count] = why
    assert {why.field for why in refused.values()} <= {"num_inference_steps"}
    assert not {2, 3, 33} & set(refused)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["DEISMultistepScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"]
)
def test_times_that_are_twice_there_are_refused_where_they_would_give_no_finite_numbers(
    name: str, order: int
) -> None:
    for spacing in SPACINGS:
        scheduler = made(name, timestep_spacing=spacing, num_train_timesteps=TRAINED, solver_order=order)
        for count in (3, 50, 99, 100, 101):
            try:
                last = gone_through(copy.deepcopy(scheduler), count)
            except InvalidRequest:
                assert count >= 99, spacing
            else:
                assert torch.isfinite(last).all(), (spacing, count)


@pytest.mark.parametrize("name", ["KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler"])
def test_more_steps_than_there_are_times_are_refused_where_all_would_be_the_same(name: str) -> None:
    scheduler = made(name, timestep_spacing="leading", num_train_timesteps=TRAINED)
    with pytest.raises(InvalidRequest, match="all the same"):
        gone_through(scheduler, TRAINED + 1)


def test_what_leaves_a_table_is_refused_before_the_denoiser_runs_with_the_field() -> None:
    scheduler = made("DDIMScheduler", timestep_spacing="leading", steps_offset=1)
    stage = HubStage.of(ToyPipeline(ToyDenoiser().eval(), scheduler), BASE)
    before = dict(stage.counts.calls)
    stage.arrive(ask(BASE, "many", "a cat", steps=1000))
    failed = stage.run()["many"]
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code, failed.field) == (400, "invalid_request", "num_inference_steps")
    assert "1000 steps: their times 1..1000 leave its table of 1000" in failed.message
    assert stage.counts.calls == before
    stage.arrive(ask(BASE, "fewer", "a cat", steps=3))
    assert isinstance(stage.run()["fewer"], Completed)


def test_an_intercepted_scheduler_follows_deep_copies_and_keeps_its_signatures() -> None:
    scheduler = made("DDIMScheduler")
    intercept(scheduler, Steps())
    other = copy.deepcopy(scheduler)
    other.set_timesteps(7)
    assert scheduler.num_inference_steps is None
    assert other.num_inference_steps == 7
    assert "num_inference_steps" in inspect.signature(other.set_timesteps).parameters
