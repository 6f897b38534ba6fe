"""Calls of several requests become one call, and each request gets what it would have got alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stage_runtime.batching.spec import (
    LIST,
    BatchSpec,
    Padding,
    SharedTensors,
    Unmergeable,
    derive_axes,
)
from stage_runtime.core.outcome import Completed, Failed
from stage_runtime.runner.output import PIXELS
from stage_runtime.scripts.tensor_tree import Unavailable, split_rows
from support import tiny_models
from support.hub_stage import HubStage, array, ask, plain, relative
from support.tiny_models import load_plain
from support.toy_pipeline import BASE, ToyDenoiser, toy

LONG_PROMPT = "a very long description of a cat that sits on a mat " * 6


def base_of(name: str) -> dict[str, Any]:
    """Small arguments of a tiny model, without the step count."""
    return {k: v for k, v in tiny_models.reference_arguments(name).items() if k != "num_inference_steps"}


def rows(n: int, *shape: int) -> torch.Tensor:
    """Rows of numbers that tell rows apart."""
    return torch.arange(n, dtype=torch.float32).view(n, *[1] * len(shape)).expand(n, *shape).clone()


SPEC = BatchSpec(
    parameters=("x", "t", "text", "text_mask", "ids"),
    axes={("x",): 0, ("text",): 0, ("shapes",): LIST},
    seen=frozenset({("x",), ("t",), ("text",), ("ids",)}),
    padding=Padding("text", "text_mask", torch.bool, crops=(((0,), 1),)),
)


def call(n: int = 1, length: int = 2, **changes: Any) -> dict[str, Any]:
    """A call of the spec above."""
    arguments = {
        "x": rows(n, 4),
        "t": torch.tensor(0.5),
        "text": rows(n, length, 3),
        "ids": torch.zeros(4, 2),
    }
    return arguments | {"shapes": [(8, 8)] * n} | changes


def test_the_batch_axis_of_each_argument_is_found_by_comparing_one_row_with_two() -> None:
    one = {
        "x": torch.zeros(1, 4),
        "parts": [torch.zeros(3)],
        "nested": {"y": torch.zeros(5, 1)},
        "t": torch.zeros(1),
    }
    two = {
        "x": torch.zeros(2, 4),
        "parts": [torch.zeros(3)] * 2,
        "nested": {"y": torch.zeros(5, 2)},
        "t": torch.zeros(1),
    }
    axes, seen, unlike = derive_axes(one, two)
    assert axes == {("x",): 0, ("parts",): LIST, ("nested", "y"): 1}
    assert ("t",) in seen
    assert unlike == set()


def test_a_guided_call_of_two_rows_a_request_has_its_axis_found_too() -> None:
    axes, _, _ = derive_axes({"x": torch.zeros(2, 4)}, {"x": torch.zeros(4, 4)})
    assert axes == {("x",): 0}


def test_an_argument_that_grows_by_another_factor_can_not_be_merged() -> None:
    with pytest.raises(Unmergeable, match="x is"):
        derive_axes({"x": torch.zeros(1, 4)}, {"x": torch.zeros(3, 4)})


def test_merged_calls_keep_their_rows_in_order_and_are_split_by_count() -> None:
    calls = [call(1), call(3), call(2)]
    merged, padded = SPEC.merge(calls, [1, 3, 2])
    assert padded is None
    assert merged["x"][:, 0].tolist() == [0, 0, 1, 2, 0, 1]
    assert len(merged["shapes"]) == 6
    assert [len(part) for part in split_rows((merged["x"],), [1, 3, 2])] == [1, 1, 1]
    assert [len(part[0]) for part in split_rows((merged["x"],), [1, 3, 2])] == [1, 3, 2]


def test_a_scalar_that_differs_is_given_to_each_row() -> None:
    merged, _ = SPEC.merge([call(1), call(2, t=torch.tensor(0.25))], [1, 2])
    assert merged["t"].tolist() == [0.5, 0.25, 0.25]


def test_texts_of_unequal_length_are_padded_masked_and_cropped_again() -> None:
    calls = [call(1, length=2), call(1, length=5)]
    merged, padded = SPEC.merge(calls, [1, 1])
    assert padded == 5
    assert merged["text_mask"].tolist() == [[True, True, False, False, False], [True] * 5]
    parts = SPEC.split((merged["text"],), [1, 1], calls, padded)
    assert [part[0].shape[1] for part in parts] == [2, 5]


def test_texts_of_equal_length_are_left_without_a_mask() -> None:
    merged, padded = SPEC.merge([call(), call()], [1, 1])
    assert padded is None
    assert "text_mask" not in merged


@pytest.mark.invariant("BATCH-INV-001")
@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"text": rows(1, 9, 3)}, True),
        ({"x": rows(1, 5)}, False),
        ({"x": rows(1, 4).double()}, False),
        ({"ids": torch.ones(4, 2)}, False),
        ({"shapes": [(16, 8)]}, False),
        ({"flag": True}, False),
    ],
)
def test_calls_fit_together_only_when_all_but_their_rows_agree(changes: dict[str, Any], fits: bool) -> None:
    shared = SharedTensors()
    assert (SPEC.key(call(), shared) == SPEC.key(call(**changes), shared)) is fits


def test_a_tensor_or_an_object_that_the_probe_never_saw_keeps_a_call_alone() -> None:
    for unseen in (torch.zeros(3), torch.Generator(), object()):
        with pytest.raises(Unmergeable):
            SPEC.key(call(extra=unseen), SharedTensors())


def test_equal_shared_tensors_are_compared_once_and_again_after_a_write() -> None:
    shared = SharedTensors()
    first, second = torch.zeros(3), torch.zeros(3)
    assert shared.token(first) == shared.token(second)
    second.add_(1)
    assert shared.token(first) != shared.token(second)
    assert shared.token(first) == shared.token(torch.zeros(3))


def test_a_shared_tensor_that_is_gone_leaves_nothing_behind() -> None:
    shared = SharedTensors()
    for _ in range(100):
        shared.token(torch.zeros(3))
    assert len(shared) == 0


def test_what_can_not_be_divided_among_requests_fails_loudly_when_it_is_used() -> None:
    (part, _) = split_rows((torch.zeros(2, 1), object()), [1, 1])
    assert isinstance(part[1], Unavailable)
    with pytest.raises(RuntimeError, match="can't be divided"):
        part[1].key_cache  # noqa: B018 - the access is the test


def test_a_result_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows"):
        split_rows(torch.zeros(2, 4), [1, 2])


@pytest.mark.parametrize("name", tiny_models.EXACT_LENGTH)
def test_a_neighbours_long_prompt_does_not_change_a_picture(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    """Case B39."""
    base, pipeline = base_of(name), load_plain(tiny_model(name))
    prompts = {"short": "cat", "empty": "", "long": LONG_PROMPT[:120]}
    requests = [ask(base, key, prompt, steps=3, seed=4) for key, prompt in prompts.items()]
    stage = HubStage.of(pipeline, base)
    stage.arrive(*requests)
    got = stage.outputs()
    denoiser = f"{stage.capability.denoisers[0]}.forward"
    assert stage.counts.merged[denoiser] > 0
    for request in requests:
        assert relative(got[request.request_id], plain(pipeline, request)) <= 1e-5


def test_requests_of_unlike_sizes_run_apart_and_like_ones_together(tiny_model: Callable[[str], Path]) -> None:
    """Case B38: the scheduler keeps unlike sizes apart; the hub would too, and fails none of them."""
    base, pipeline = base_of("flux"), load_plain(tiny_model("flux"))
    stage = HubStage.of(pipeline, base, slots=4)
    sizes = {"a": 32, "b": 64, "c": 32, "d": 64}
    requests = [
        ask(base, key, "a cat", steps=3, seed=4, height=side, width=side) for key, side in sizes.items()
    ]
    stage.arrive(*requests)
    got = stage.outputs()
    assert stage.counts.calls["transformer.forward"] == 2 * 3
    assert stage.counts.merged["transformer.forward"] == 2 * 3
    for request in requests:
        assert relative(got[request.request_id], plain(pipeline, request)) <= 1e-5


def test_settings_of_one_request_never_reach_another(tiny_model: Callable[[str], Path]) -> None:
    """Case B62."""
    base, pipeline = base_of("stable-diffusion-xl"), load_plain(tiny_model("stable-diffusion-xl"))
    settings: list[dict[str, Any]] = [
        {"guidance_scale": 1.0},
        {"guidance_scale": 8.0},
        {"guidance_scale": 5.0, "negative_prompt": "a dog"},
        {"guidance_scale": 5.0, "guidance_rescale": 0.7},
    ]
    requests = [ask(base, str(i), "a cat", steps=4, seed=4, **more) for i, more in enumerate(settings)]
    stage = HubStage.of(pipeline, base, slots=4)
    stage.arrive(*requests)
    got = stage.outputs()
    for request in requests:
        assert relative(got[request.request_id], plain(pipeline, request)) <= 1e-5


@pytest.mark.invariant("BATCH-INV-002")
def test_each_request_runs_its_own_number_of_steps_and_a_leaver_moves_nobody_elses_rows() -> None:
    """Case B11."""
    pipeline = toy()
    steps = {"a": 3, "b": 5, "c": 8, "d": 8}
    requests = [ask(BASE, key, f"a {key}", steps=n, seed=n) for key, n in steps.items()]
    stage = HubStage.of(pipeline, BASE, slots=4)
    stage.arrive(requests[0], requests[1])
    stage.tick()
    stage.arrive(requests[2])
    stage.tick()
    stage.abort("b")
    stage.arrive(requests[3])
    done = stage.run()
    for request in (requests[0], requests[2], requests[3]):
        outcome = done[request.request_id]
        assert isinstance(outcome, Completed)
        assert outcome.steps == request.steps
        assert relative(array(outcome.output), plain(pipeline, request)) <= 1e-6


class HungryDenoiser(ToyDenoiser):
    """Runs out of memory on one prompt."""

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        from support.toy_pipeline import embed

        if any(torch.equal(row, embed("huge")) for row in prompt_embeds):
            raise torch.OutOfMemoryError("tried to allocate too much")
        return super().forward(hidden_states, timestep, prompt_embeds)


def test_a_request_that_runs_out_of_memory_fails_alone_and_harms_no_later_one() -> None:
    """Case B60."""
    pipeline = toy(denoiser=HungryDenoiser)
    stage = HubStage.of(pipeline, BASE)
    for round_ in range(20):
        stage.arrive(
            ask(BASE, f"huge{round_}", "huge", steps=4, seed=1),
            ask(BASE, f"ok{round_}", "a cat", steps=3, seed=2),
        )
        done = stage.run()
        failed = done[f"huge{round_}"]
        assert isinstance(failed, Failed)
        assert (failed.status, failed.code) == (507, "out_of_memory")
        assert isinstance(done[f"ok{round_}"], Completed)
    assert stage.held() == {"scripts": 0, "recordings": 0, "processors": 0}


def test_a_model_that_makes_one_at_a_time_still_serves_many_at_once() -> None:
    """Case B40: a pipeline that can't batch starts with any number of slots and runs them one by one."""

    class OneAtATime(ToyDenoiser):
        def forward(
            self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
        ) -> torch.Tensor:
            if len(hidden_states) > 1:
                raise ValueError("one at a time, please")
            return super().forward(hidden_states, timestep, prompt_embeds)

    pipeline = toy(denoiser=OneAtATime)
    stage = HubStage.of(pipeline, BASE, slots=4)
    (denoiser,) = stage.capability.components
    assert not denoiser.merges
    assert "two at once" in denoiser.reason
    assert not stage.capability.batches
    requests = [ask(BASE, key, f"a {key}", steps=3, seed=1) for key in "abc"]
    stage.arrive(*requests)
    got = stage.outputs()
    for request in requests:
        assert np.array_equal(got[request.request_id], plain(pipeline, request))


def test_the_phases_of_a_request_hold_the_time_of_its_components_and_add_up(
    tiny_model: Callable[[str], Path],
) -> None:
    """Case B99."""
    base = base_of("stable-diffusion-3")
    stage = HubStage.of(load_plain(tiny_model("stable-diffusion-3")), base, output=PIXELS)
    stage.arrive(ask(base, "a", "a cat", steps=4, seed=1))
    done = stage.run()["a"]
    assert isinstance(done, Completed)
    assert done.phases is not None
    seconds = stage.counts.seconds
    encoders = sum(took for name, took in seconds.items() if name.startswith("text_encoder"))
    assert done.phases.prepare >= encoders > 0
    assert done.phases.denoise >= seconds["transformer.forward"] > 0
    assert done.phases.decode >= seconds["vae.decode"] > 0
    components = encoders + seconds["transformer.forward"] + seconds["vae.decode"]
    assert done.phases.prepare + done.phases.denoise + done.phases.decode >= components
