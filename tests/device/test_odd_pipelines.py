"""What pipelines in the wild may do to those who run beside them, and that they do it to themselves alone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import torch

from stage_runtime.core.errors import DeviceLost, InvalidRequest
from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Progressed
from stage_runtime.runner.output import PIXELS
from stage_runtime.worker.faults import FaultProbe
from support.hub_stage import HubStage, ask, plain, relative
from support.toy_pipeline import BASE, ToyDenoiser, ToyOutput, ToyPipeline, embed, toy

ODD = "odd"


class OddResultPipeline(ToyPipeline):
    """Answers one prompt with something that is no picture."""

    result: Any = None

    def __call__(self, prompt: Any = None, **arguments: Any) -> Any:
        made = super().__call__(prompt, **arguments)
        return self.result if prompt == ODD else made


class RaisingPipeline(ToyPipeline):
    """Raises at one prompt."""

    error: BaseException = RuntimeError("odd")

    def check_inputs(self, prompt: Any, size: int) -> None:
        if prompt == ODD:
            raise self.error
        super().check_inputs(prompt, size)


class LeavingDenoiser(ToyDenoiser):
    """Raises over one prompt, alone or in company."""

    error: BaseException | None = None

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        if self.error is not None and any(torch.equal(row, embed(ODD)) for row in prompt_embeds):
            raise self.error
        return super().forward(hidden_states, timestep, prompt_embeds)


class LateCallPipeline(ToyPipeline):
    """Calls its denoiser once more when it ends, however it ends."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        try:
            return super().denoise(scheduler, latents, embeds)
        finally:
            self.transformer(latents, torch.ones(len(latents)), embeds)


class TwiceSteppingPipeline(ToyPipeline):
    """Steps its scheduler twice for each call of the denoiser."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        for first, second in zip(scheduler.timesteps[::2], scheduler.timesteps[1::2], strict=True):
            noise = self.transformer(latents, first.expand(len(latents)) / 1000, embeds)
            for t in (first, second):
                latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents


class ShyPreviewPipeline(ToyPipeline):
    """Fails when it is to show what it has, once it is loaded."""

    def maybe_free_model_hooks(self) -> None:
        if self.interrupt and getattr(self.transformer, "loaded", False):
            raise RuntimeError("nothing to see here")


class Distribution:
    """What an encoder of pictures answers with."""

    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean


class EncodingDenoiser(ToyDenoiser):
    """Encodes pictures too."""

    def encode(self, pictures: torch.Tensor) -> Distribution:
        return Distribution(torch.tanh(pictures))


class ScalingPipeline(ToyPipeline):
    """Edits in place what an encoder gave."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        mean = self.transformer.encode(latents).mean
        mean *= 0.5
        return super().denoise(scheduler, latents + mean, embeds)


class SometimesDenoiser(ToyDenoiser):
    """Fails in every second of its merged calls, once it is loaded."""

    loaded = fails = False

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        if self.loaded and len(hidden_states) > 1:
            self.fails = not self.fails
            if self.fails:
                raise RuntimeError("not now")
        return super().forward(hidden_states, timestep, prompt_embeds)


def beside_a_sound_one(stage: HubStage) -> dict[str, Outcome]:
    """The end of an odd request and of one beside it, which must be completed."""
    stage.arrive(ask(BASE, "sound", "a cat", steps=3), ask(BASE, ODD, ODD, steps=3))
    ended = stage.run()
    assert isinstance(ended["sound"], Completed)
    assert set(stage.held().values()) == {0}
    return dict(ended)


@pytest.mark.parametrize(
    "result", [ToyOutput([]), ToyOutput([None]), ToyOutput([[[1, 2], [3]]]), (torch.zeros(1, 4, 4, 3),), None]
)
def test_a_result_that_is_no_picture_fails_its_request_alone(result: Any) -> None:
    pipeline = toy(OddResultPipeline)
    pipeline.result = result
    failed = beside_a_sound_one(HubStage.of(pipeline, BASE, output=PIXELS))[ODD]
    assert isinstance(failed, Failed)
    assert failed.status == 500


def test_wrong_requests_that_come_at_once_each_fail_and_the_next_one_is_served() -> None:
    """Case B09."""
    pipeline = toy(RaisingPipeline)
    pipeline.error = ValueError("too few frames")
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*(ask(BASE, f"{ODD}{place}", ODD, steps=3) for place in range(8)))
    ended = stage.run()
    assert [(end.status, end.message) for end in ended.values() if isinstance(end, Failed)] == [
        (400, "too few frames")
    ] * 8
    stage.arrive(ask(BASE, "sound", "a cat", steps=3))
    assert isinstance(stage.run()["sound"], Completed)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("the end")])
def test_what_would_end_a_process_ends_its_request_alone(error: BaseException) -> None:
    pipeline = toy(RaisingPipeline)
    pipeline.error = error
    failed = beside_a_sound_one(HubStage.of(pipeline, BASE))[ODD]
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (500, "request_failed")
    assert failed.message.startswith(type(error).__name__)


def test_a_device_that_fails_between_two_calls_of_modules_is_noticed() -> None:
    pipeline = toy(RaisingPipeline)
    stage = HubStage.of(pipeline, BASE, faults=FaultProbe(_lost))
    stage.arrive(ask(BASE, ODD, ODD, steps=3))
    with pytest.raises(DeviceLost):
        stage.run()


def _lost() -> None:
    raise RuntimeError("an illegal memory access was encountered")


def test_an_abort_gets_through_a_pipeline_that_parks_once_more_while_it_ends() -> None:
    stage = HubStage.of(toy(LateCallPipeline), BASE)
    stage.arrive(ask(BASE, "a", "a cat", steps=5), ask(BASE, "b", "a dog", steps=3))
    stage.tick()
    stage.abort("a")
    ended = stage.run()
    assert isinstance(ended["a"], Aborted)
    assert isinstance(ended["b"], Completed)
    assert set(stage.held().values()) == {0}


def test_two_scheduler_steps_for_one_call_are_counted_and_end_as_alone() -> None:
    stage = HubStage.of(toy(TwiceSteppingPipeline), BASE)
    requests = [ask(BASE, name, name, steps=steps, seed=steps) for name, steps in (("a", 4), ("b", 6))]
    stage.arrive(*requests)
    got = stage.outputs()
    for request in requests:
        assert relative(got[request.request_id], plain(toy(TwiceSteppingPipeline), request)) <= 1e-6
    steps = [told.step for told in stage.told if isinstance(told, Progressed) and told.request_id == "b"]
    assert steps == [2, 4]


def test_a_preview_that_can_not_be_drawn_is_logged_and_its_request_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = toy(ShyPreviewPipeline)
    stage = HubStage.of(pipeline, BASE)
    assert stage.capability.resumable
    pipeline.transformer.loaded = True
    stage.arrive(ask(BASE, "a", "a cat", steps=4, preview_steps=(2,)))
    with caplog.at_level(logging.WARNING):
        ended = stage.run()
    assert isinstance(ended["a"], Completed)
    assert [record.message for record in caplog.records] == ["preview not drawn"]


def test_a_merged_call_that_fails_now_and_then_harms_nobody() -> None:
    pipeline = toy(ToyPipeline, SometimesDenoiser)
    stage = HubStage.of(pipeline, BASE)
    pipeline.transformer.loaded = True
    requests = [ask(BASE, name, name, steps=4, seed=place) for place, name in enumerate("abc")]
    stage.arrive(*requests)
    got = stage.outputs()
    assert stage.counts.calls["transformer.forward"] == 2 * (1 + 3) + 2
    for request in requests:
        assert relative(got[request.request_id], plain(toy(), request)) <= 1e-6


def test_stopping_a_request_that_has_not_begun_is_refused_not_forgotten() -> None:
    stage = HubStage.of(toy(), BASE)
    stage.arrive(ask(BASE, "a", "a cat", steps=4))
    stage.executor.submit(stage.scheduler.schedule(0))
    with pytest.raises(InvalidRequest, match="not running"):
        stage.worker.runner.stop_early("a")
    stage.executor.poll(None)
    stage.worker.runner.stop_early("a")


def test_what_an_encoder_answers_with_may_be_edited_in_place() -> None:
    stage = HubStage.of(toy(ScalingPipeline, EncodingDenoiser), BASE)
    request = ask(BASE, "a", "a cat", steps=3, seed=1)
    stage.arrive(request)
    want = plain(toy(ScalingPipeline, EncodingDenoiser), request)
    assert relative(stage.outputs()["a"], want) == 0.0


@pytest.mark.parametrize(
    "error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), StopIteration(5)]
)
def test_a_module_that_would_end_the_process_ends_its_request_alone(error: BaseException) -> None:
    pipeline = toy(ToyPipeline, LeavingDenoiser)
    stage = HubStage.of(pipeline, BASE)
    pipeline.transformer.error = error
    stage.arrive(ask(BASE, "a", "a cat", steps=3), ask(BASE, ODD, ODD, steps=3))
    ended = stage.run()
    assert isinstance(ended["a"], Completed)
    failed = ended[ODD]
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (500, "request_failed")
    assert type(error).__name__ in failed.message
    assert set(stage.held().values()) == {0}
