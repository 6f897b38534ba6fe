"""What goes wrong when requests share a model, each with its name, and that it does not go wrong here."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stage_runtime.batching.batcher import Batcher
from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Aborted, Completed, Failed
from stage_runtime.core.request import Request
from stage_runtime.runner.hub import Hub
from stage_runtime.scripts.isolation import CacheContexts
from stage_runtime.scripts.private_pipeline import components, open_script
from support import tiny_models
from support.hub_stage import HubStage, array, ask, plain, relative
from support.tiny_models import load_plain
from support.toy_pipeline import (
    BASE,
    CatchingPipeline,
    CopyingPipeline,
    MixingDenoiser,
    OuterPipeline,
    PickyDenoiser,
    RememberingDenoiser,
    SettingPipeline,
    StaticPipeline,
    SteplessPipeline,
    ToyPipeline,
    WritingDenoiser,
    toy,
)


def three() -> tuple[Request, Request, Request]:
    """Requests of unlike prompts, seeds and steps."""
    return (
        ask(BASE, "a", "a cat", steps=3, seed=1),
        ask(BASE, "b", "a dog", steps=5, seed=2),
        ask(BASE, "c", "a bird", steps=4, seed=3),
    )


def assert_all_equal_plain(stage: HubStage, pipeline: Any, tolerance: float = 1e-6) -> None:
    """Each of the three gets what plain diffusers gives."""
    stage.arrive(*three())
    got = stage.outputs()
    for request in three():
        assert relative(got[request.request_id], plain(pipeline, request)) <= tolerance


@pytest.mark.invariant("BATCH-INV-002")
def test_a_scheduler_shared_by_requests_is_each_requests_own() -> None:
    """Case B25."""
    pipeline = toy()
    before = copy.deepcopy(vars(pipeline.scheduler))
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three())
    got = stage.outputs()
    assert set(vars(pipeline.scheduler)) == set(before)
    assert pipeline.scheduler._step_index == before["_step_index"]
    for request in three():
        assert relative(got[request.request_id], plain(pipeline, request)) <= 1e-6


def test_attributes_that_a_pipeline_sets_on_itself_stay_with_its_request() -> None:
    pipeline = toy()
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three())
    stage.tick()
    stage.worker.runner.stop_early("a")
    done = stage.run()
    assert [done[name].steps for name in "abc"] == [2, 5, 4]  # type: ignore[union-attr]


def test_grad_mode_is_off_inside_the_model_and_untouched_outside() -> None:
    pipeline = toy()
    modes: list[bool] = []
    pipeline.transformer.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    stage = HubStage.of(pipeline, BASE)
    modes.clear()
    with torch.enable_grad():
        stage.arrive(*three())
        stage.run()
        assert torch.is_grad_enabled()
    assert modes
    assert not any(modes)


@pytest.mark.parametrize("outer", [True, False])
def test_grad_mode_does_not_leak_when_a_request_is_forgotten_or_dropped_in_mid_step(outer: bool) -> None:
    pipeline = toy()
    with torch.set_grad_enabled(outer):
        stage = HubStage.of(pipeline, BASE)
        stage.arrive(*three())
        stage.tick()
        stage.worker.runner.forget(["a"])
        assert torch.is_grad_enabled() is outer
        stage.executor.close()
        assert torch.is_grad_enabled() is outer
        dropped = open_script(pipeline, "d", {"prompt": "a cat", "generator": torch.Generator()})
        with torch.no_grad():
            dropped.start()
        del dropped
        gc.collect()
        assert torch.is_grad_enabled() is outer


def test_results_are_no_inference_tensors_so_that_their_versions_can_be_read() -> None:
    pipeline = toy()
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three())
    stage.tick()
    latents = stage.worker.runner.checkpoint("b").latents[0]
    assert not latents.is_inference()


def test_the_epilogue_of_one_request_resets_no_other_requests_cache_state() -> None:
    pipeline = toy()
    resets: list[int] = []
    pipeline.transformer._reset_stateful_cache = lambda *_: resets.append(1)
    stage = HubStage.of(pipeline, BASE)
    resets.clear()
    stage.arrive(*three())
    stage.run()
    assert resets == []


def test_a_cache_context_held_across_a_park_is_its_own_requests() -> None:
    script = open_script(toy(), "a", {"prompt": "a cat", "generator": torch.Generator()})
    other = open_script(toy(), "b", {"prompt": "a cat", "generator": torch.Generator()})
    with torch.no_grad():  # as the hub holds it around all that it interleaves
        for one in (script, other):
            one.start()
        with script.pipeline.transformer.cache_context("cond"):
            assert script.pipeline.transformer._context == ("cond", {})
            assert other.pipeline.transformer._context is None
        for one in (script, other):
            one.abort()


def test_step_caches_of_interleaved_requests_do_not_mix(tiny_model: Callable[[str], Path]) -> None:
    from diffusers.hooks import FirstBlockCacheConfig

    base = {k: v for k, v in tiny_models.reference_arguments("flux").items() if k != "num_inference_steps"}
    requests = [ask(base, name, f"a {name}", steps=6, seed=i) for i, name in enumerate("ab")]
    pipeline = load_plain(tiny_model("flux"))
    pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.9))
    want = [plain(pipeline, request) for request in requests]
    stage = HubStage.of(pipeline, base)
    stage.arrive(*requests)
    got = stage.outputs()
    for request, expected in zip(requests, want, strict=True):
        assert np.array_equal(got[request.request_id], expected)
    assert not stage.capability.resumable
    assert "step cache" in stage.capability.reason
    stage.tick()
    assert _cached_names(pipeline) == set()


def _cached_names(pipeline: Any) -> set[str]:
    """Contexts for which some module keeps state."""
    contexts = CacheContexts.among({"transformer": pipeline.transformer})
    names: set[str] = set()
    for part in contexts.modules["transformer"].modules():
        for hook in getattr(getattr(part, "_diffusers_hook", None), "hooks", {}).values():
            for value in vars(hook).values():
                names |= set(getattr(value, "_state_cache", {}))
    return names


def test_attention_processors_that_a_request_puts_on_the_model_stay_its_own(
    tiny_model: Callable[[str], Path],
) -> None:
    from diffusers import StableDiffusionXLPAGPipeline

    base = {
        k: v
        for k, v in tiny_models.reference_arguments("stable-diffusion-xl").items()
        if k != "num_inference_steps"
    }
    parts = load_plain(tiny_model("stable-diffusion-xl")).components
    pipeline = StableDiffusionXLPAGPipeline(**parts, pag_applied_layers=["down", "up"])
    pipeline.set_progress_bar_config(disable=True)
    base["pag_scale"] = 3.0
    requests = [ask(base, "a", "a cat", steps=3, seed=1), ask(base, "b", "a house", steps=4, seed=2)]
    want = [plain(pipeline, request) for request in requests]
    processors = dict(pipeline.unet.attn_processors)
    stage = HubStage.of(pipeline, base)
    stage.arrive(*requests)
    stage.tick()
    assert pipeline.unet.attn_processors == processors
    got = stage.outputs()
    for request, expected in zip(requests, want, strict=True):
        assert relative(got[request.request_id], expected) <= 1e-5
    assert "unet.forward" not in stage.counts.merged
    assert pipeline.unet.attn_processors == processors
    stage.tick()
    assert stage.held()["processors"] == 0


def test_guiders_that_hook_the_model_hook_it_for_their_own_request_alone(
    tiny_model: Callable[[str], Path],
) -> None:
    """A modular pipeline, unmodified; two requests whose guiders would both register a hook of one name."""
    from diffusers import ModularPipeline
    from diffusers.guiders import SmoothedEnergyGuidance
    from diffusers.hooks import SmoothedEnergyGuidanceConfig

    pipeline = ModularPipeline.from_pretrained(str(tiny_model("qwen-image")))
    pipeline.load_components()
    pipeline.set_progress_bar_config(disable=True)
    layers = SmoothedEnergyGuidanceConfig(indices=[0], fqn="transformer_blocks")
    guider = SmoothedEnergyGuidance(
        guidance_scale=3.0, seg_guidance_scale=2.0, seg_guidance_config=layers, seg_guidance_stop=1.0
    )
    pipeline.update_components(guider=guider)

    def arguments(seed: int, prompt: str) -> dict[str, Any]:
        base = {"num_inference_steps": 3, "height": 32, "width": 32, "output_type": "pt", "output": "images"}
        return {**base, "prompt": prompt, "generator": torch.Generator().manual_seed(seed)}

    asked = {"a": (1, "a cat"), "b": (2, "a dog")}
    want = {name: pipeline(**arguments(*what)) for name, what in asked.items()}
    hub = Hub(Batcher(components(pipeline)), {"transformer"})
    for name, what in asked.items():
        hub.add(open_script(pipeline, name, arguments(*what)))
    hub.tick(["a"])
    hub.tick(["a", "b"])
    hub.run(asked)
    for name, expected in want.items():
        assert hub.scripts[name].error is None
        assert torch.equal(hub.scripts[name].result, expected)
    leftover = [
        part for part in pipeline.transformer.modules() if getattr(part, "_diffusers_hook", None) is not None
    ]
    assert all(part._diffusers_hook.hooks == {} for part in leftover)


def test_a_stand_in_passes_for_the_module_it_stands_for() -> None:
    pipeline = toy()
    script = open_script(pipeline, "a", {"prompt": "a cat", "generator": torch.Generator()})
    stand_in, real = script.pipeline.transformer, pipeline.transformer
    assert isinstance(stand_in, type(real))
    assert isinstance(stand_in, torch.nn.Module)
    assert (stand_in.dtype, stand_in.device, stand_in.config) == (real.dtype, real.device, real.config)
    assert script.pipeline.device == pipeline.device


def test_a_request_that_sets_an_attribute_on_a_shared_module_fails_alone() -> None:
    with pytest.raises(ModelError, match="current_prompt"):
        HubStage.of(toy(SettingPipeline), BASE)


def test_guidance_that_takes_two_calls_a_step_still_counts_one_step(
    tiny_model: Callable[[str], Path],
) -> None:
    base = {
        k: v for k, v in tiny_models.reference_arguments("qwen-image").items() if k != "num_inference_steps"
    }
    stage = HubStage.of(load_plain(tiny_model("qwen-image")), base)
    stage.arrive(ask(base, "a", "a cat", steps=4, seed=1))
    done = stage.run()["a"]
    assert isinstance(done, Completed)
    assert done.steps == 4
    assert stage.counts.calls["transformer.forward"] == 8


def test_a_pipeline_inside_a_pipeline_is_interleaved_too() -> None:
    pipeline = toy(OuterPipeline)
    stage = HubStage.of(pipeline, BASE)
    assert stage.capability.denoisers == ("inner.transformer",)
    assert_all_equal_plain(stage, pipeline)
    assert stage.counts.merged["inner.transformer.forward"] > 0


def test_a_pipeline_that_calls_no_component_is_refused_at_load() -> None:
    with pytest.raises(ModelError, match="called none of its components"):
        HubStage.of(toy(StaticPipeline), BASE)


def test_a_model_that_edits_its_arguments_runs_alone_and_is_not_resumable() -> None:
    pipeline = toy(denoiser=WritingDenoiser)
    stage = HubStage.of(pipeline, BASE)
    (denoiser,) = stage.capability.components
    assert not denoiser.merges
    assert "writes to its arguments" in denoiser.reason
    assert not stage.capability.resumable
    assert_all_equal_plain(stage, pipeline, tolerance=0.0)


def test_a_model_that_keeps_state_between_calls_runs_alone_and_is_not_resumable() -> None:
    stage = HubStage.of(toy(denoiser=RememberingDenoiser), BASE)
    (denoiser,) = stage.capability.components
    assert not denoiser.merges
    assert not stage.capability.resumable
    assert "second time" in stage.capability.reason


def test_a_model_whose_rows_see_each_other_is_found_out_and_runs_alone() -> None:
    pipeline = toy(denoiser=MixingDenoiser)
    stage = HubStage.of(pipeline, BASE)
    (denoiser,) = stage.capability.components
    assert not denoiser.merges
    assert "answers differently" in denoiser.reason
    assert_all_equal_plain(stage, pipeline, tolerance=0.0)


def test_a_deep_copied_scheduler_counts_steps_and_keeps_its_class() -> None:
    pipeline = toy(CopyingPipeline)
    stage = HubStage.of(pipeline, BASE)
    assert stage.capability.resumable
    assert_all_equal_plain(stage, pipeline)


def test_a_pipeline_without_scheduler_steps_is_counted_by_its_denoiser_calls() -> None:
    pipeline = toy(SteplessPipeline)
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three())
    done = stage.run()
    assert [done[name].steps for name in "abc"] == [3, 5, 4]  # type: ignore[union-attr]


def test_one_poisoned_request_fails_alone_in_a_merged_call() -> None:
    pipeline = toy(denoiser=PickyDenoiser)
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three(), ask(BASE, "bad", PickyDenoiser.POISON, steps=4, seed=9))
    done = stage.run()
    assert isinstance(done["bad"], Failed)
    assert "poison" in done["bad"].message
    for request in three():
        outcome = done[request.request_id]
        assert isinstance(outcome, Completed)
        assert relative(array(outcome.output), plain(pipeline, request)) <= 1e-6


def test_an_abort_gets_through_a_pipeline_that_catches_every_exception() -> None:
    stage = HubStage.of(toy(CatchingPipeline), BASE)
    CatchingPipeline.ended.clear()
    stage.arrive(ask(BASE, "a", "a cat", steps=50, seed=1))
    stage.tick()
    stage.abort("a")
    done = stage.run()
    assert isinstance(done["a"], Aborted)
    assert CatchingPipeline.ended == ["cleaned up"]
    assert stage.held() == {"scripts": 0, "recordings": 0, "processors": 0}


def test_a_request_never_draws_from_the_global_generator() -> None:
    pipeline = toy()
    stage = HubStage.of(pipeline, BASE)
    before = torch.get_rng_state()
    stage.arrive(*three())
    stage.run()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_pipelines_own_input_check_is_the_clients_fault_and_no_neighbours() -> None:
    pipeline = toy()
    stage = HubStage.of(pipeline, BASE)
    stage.arrive(*three(), ask(BASE, "bad", "a cat", steps=3, seed=9, size=5))
    done = stage.run()
    bad = done["bad"]
    assert isinstance(bad, Failed)
    assert (bad.status, bad.code) == (400, "invalid_request")
    assert all(isinstance(done[name], Completed) for name in "abc")


def test_no_error_keeps_tensors_of_its_request_alive() -> None:
    pipeline = toy(denoiser=PickyDenoiser)
    stage = HubStage.of(pipeline, BASE)
    seen: list[weakref.ref[torch.Tensor]] = []
    pipeline.transformer.register_forward_pre_hook(lambda _, inputs: seen.append(weakref.ref(inputs[0])))
    stage.arrive(ask(BASE, "bad", PickyDenoiser.POISON, steps=4, seed=9))
    outcome = stage.run()["bad"]
    gc.collect()
    assert isinstance(outcome, Failed)
    assert seen
    assert all(reference() is None for reference in seen)


def test_toy_pipelines_are_what_they_say() -> None:
    pipeline = toy()
    first, second = three()[:2]
    assert isinstance(pipeline, ToyPipeline)
    assert not np.array_equal(plain(pipeline, first), plain(pipeline, second))
