"""What a step model can do is found at load: what mixes rows runs alone and says so, what keeps state is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Completed, Failed, Modality
from stage_runtime.pipelines.families.digits.model import DigitsModel
from support.step_models import (
    AnswersForOne,
    BrokenDecoder,
    SeesNeighbours,
    StandsStill,
    WritesToStates,
    a_model,
    digit,
    step_stage,
    step_worker,
)


@pytest.mark.invariant("DIFF-MODEL-INV-001")
def test_a_model_says_what_it_is_and_what_it_was_found_able_to_do() -> None:
    capability = step_worker().capability
    assert (capability.pipeline, capability.modality) == ("DigitsModel", Modality.IMAGE)
    assert capability.batches
    assert capability.early_stop
    assert capability.resumable
    assert [component.name for component in capability.components] == [
        "model.prepare_encode",
        "model.denoise_step",
        "model.post_decode",
    ]


def test_a_model_whose_rows_see_each_other_runs_one_at_a_time_and_says_why() -> None:
    stage = step_stage(a_model(SeesNeighbours))
    assert not stage.capability.batches
    assert "two together come out differently" in stage.capability.components[0].reason
    stage.arrive(digit("a", "1"), digit("b", "2"))
    assert all(isinstance(outcome, Completed) for outcome in stage.run().values())
    assert not stage.counts.merged


def test_a_model_that_answers_for_too_few_runs_one_at_a_time_and_says_why() -> None:
    stage = step_stage(a_model(AnswersForOne))
    assert not stage.capability.batches
    assert "two requests together failed" in stage.capability.components[0].reason
    stage.arrive(digit("a", "1"), digit("b", "2"))
    assert all(isinstance(outcome, Completed) for outcome in stage.run().values())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (WritesToStates, "gives another result from the same state a second time"),
        (StandsStill, "did not move each state by one step"),
    ],
)
def test_a_model_that_breaks_the_protocol_stops_the_start(kind: type[DigitsModel], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        step_worker(a_model(kind))


def test_a_model_that_cant_be_run_stops_the_start_with_its_own_words() -> None:
    class Broken(BrokenDecoder):
        def prepare_encode(self, newcomers: object) -> list:  # type: ignore[type-arg,override]
            raise ValueError("no codebook")

    with pytest.raises(ModelError, match="Broken can't be run: ValueError: no codebook"):
        step_worker(a_model(Broken))


def test_a_model_whose_results_are_not_finite_stops_the_start() -> None:
    class Hazy(BrokenDecoder):
        def step_scheduler(self, states: Any, prediction: torch.Tensor) -> Any:
            return super().step_scheduler(states, prediction * float("nan"))

    with pytest.raises(ModelError, match="Hazy can't be run: the model's results for this request hold"):
        step_worker(a_model(Hazy))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_stops_being_finite_fails_its_request_alone_though_its_picture_is_clamped(
    value: float,
) -> None:
    class Overflowing(DigitsModel):
        def step_scheduler(self, states: Any, prediction: torch.Tensor) -> Any:
            moved = super().step_scheduler(states, prediction)
            spoilt = [s.asked.digit == 8 and s.step == s.steps for s in moved]
            return [
                replace(s, noisy=s.noisy * value) if bad else s for s, bad in zip(moved, spoilt, strict=True)
            ]

        def post_decode(self, states: Any) -> Any:
            return super().post_decode([replace(s, noisy=s.noisy.nan_to_num()) for s in states])

    stage = step_stage(a_model(Overflowing))
    stage.arrive(digit("bad", "8"), digit("good", "1"))
    ended = stage.run()
    assert isinstance(ended["good"], Completed)
    bad = ended["bad"]
    assert isinstance(bad, Failed)
    assert (bad.status, bad.code) == (500, "non_finite_output")
