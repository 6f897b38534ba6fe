"""The model layer is diffusers, unmodified: what a request gets is what plain diffusers gives.

Nine families with tiny random weights, the trained shapes model among them; CPU, fp32, one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stage_runtime.runner.output import PIXELS
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.sched.step import StepScheduler
from support.hub_stage import HubStage, ask, plain, relative

if TYPE_CHECKING:
    from conftest import Family

MODES = (StepScheduler, RequestScheduler)
MERGED_TOLERANCE = 1e-5
"""Relative, on the final latents, in fp32."""


def interleaved(family: Family, scheduler: type[BaseScheduler], *, merge: bool) -> HubStage:
    """Two requests at once with a guest that is taken back after two ticks, and a third that comes late."""
    stage = HubStage.of(family.pipeline, family.base, scheduler=scheduler, merge=merge)
    first, second, late = family.requests()
    stage.arrive(first, second, ask(family.base, "guest", "a black heart", steps=9, seed=44))
    stage.tick()
    stage.tick()
    stage.abort("guest")
    stage.arrive(late)
    return stage


def test_one_request_alone_is_bitwise_what_plain_diffusers_gives(family: Family) -> None:
    stage = HubStage.of(family.pipeline, family.base)
    request = family.requests()[1]
    stage.arrive(request)
    assert np.array_equal(stage.outputs()["b"], plain(family.pipeline, request))


@pytest.mark.invariant("BATCH-INV-002")
@pytest.mark.parametrize("scheduler", MODES)
def test_interleaved_requests_are_bitwise_equal_when_each_call_runs_alone(
    family: Family, scheduler: type[BaseScheduler]
) -> None:
    got = interleaved(family, scheduler, merge=False).outputs()
    for request in family.requests():
        assert np.array_equal(got[request.request_id], plain(family.pipeline, request))


@pytest.mark.parametrize("scheduler", MODES)
def test_interleaved_requests_whose_calls_merge_differ_by_rounding_alone(
    family: Family, scheduler: type[BaseScheduler]
) -> None:
    got = interleaved(family, scheduler, merge=True).outputs()
    worst = max(relative(got[r.request_id], plain(family.pipeline, r)) for r in family.requests())
    assert worst <= MERGED_TOLERANCE


@pytest.mark.parametrize(("scheduler", "ticks"), [(StepScheduler, 6), (RequestScheduler, 9)])
def test_calls_are_really_merged_as_the_mode_lets_requests_join(
    family: Family, scheduler: type[BaseScheduler], ticks: int
) -> None:
    """Step mode: the late one joins at the next step. Request mode: it waits for the wave of 5 steps to end."""
    alone = interleaved(family, scheduler, merge=False)
    alone.run()
    merged = interleaved(family, scheduler, merge=True)
    merged.run()
    denoiser = f"{merged.capability.denoisers[0]}.forward"
    steps = 3 + 5 + 4 + 2
    calls_a_step = alone.counts.calls[denoiser] // steps
    assert alone.counts.calls[denoiser] == calls_a_step * steps
    assert merged.counts.calls[denoiser] == calls_a_step * ticks


def test_text_encoder_and_vae_calls_of_several_requests_merge_too(family: Family) -> None:
    stage = HubStage.of(family.pipeline, family.base, output=PIXELS)
    stage.arrive(*(ask(family.base, name, "a red circle", steps=2, seed=7) for name in "abc"))
    stage.run()
    merged = {name.rsplit(".", 1)[0] for name in stage.counts.merged}
    encoders = {name for name in merged if "text_encoder" in name}
    assert encoders
    assert "vae" in merged


def test_the_pipeline_object_itself_is_left_as_it_was(family: Family) -> None:
    before = dict(vars(family.pipeline))
    scheduler = dict(vars(family.pipeline.scheduler))
    interleaved(family, StepScheduler, merge=True).run()
    assert vars(family.pipeline) == before
    assert set(vars(family.pipeline.scheduler)) == set(scheduler)
