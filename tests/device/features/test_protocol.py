"""What a feature may do to a rank, each with a small one that does it, and that nothing of it stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stage_api.config import StageConfig
from stage_api.errors import SpecError
from stage_runtime import assemble_rank
from stage_runtime.features.feature import Feature, claimed
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.worker.parts import WorkerParts
from support.hub_stage import HubStage, ask, relative
from support.light_runner import LightRunner
from support.mp_stage import a_config
from support.small_features import Adapters, AlsoRefused, Refused, Shallow, Unsure
from support.toy_pipeline import BASE, toy

SHAPES = Path(__file__).parents[3] / "models" / "shapes" / "checkpoint"


def drawn(
    adapters: Adapters | None, *seeds: int, merge: bool = True
) -> tuple[HubStage, dict[str, np.ndarray]]:
    """A request a seed, all at once."""
    features: tuple[Feature, ...] = () if adapters is None else (adapters,)
    stage = HubStage.of(toy(), BASE, merge=merge, features=features)
    stage.arrive(*(ask(BASE, f"r{seed}", "a cat", steps=3, seed=seed) for seed in seeds))
    return stage, stage.outputs()


def test_a_hook_is_around_a_merged_call_and_knows_whose_rows_are_whose() -> None:
    adapters = Adapters(mixed=True)
    stage, together = drawn(adapters, 1, 2, 10)
    assert stage.counts.merged["transformer.forward"] == 3
    assert ("r1", "r2", "r10") in adapters.runs
    for seed in (1, 2, 10):
        _, alone = drawn(Adapters(mixed=True), seed)
        assert relative(together[f"r{seed}"], alone[f"r{seed}"]) < 1e-5
    _, plain = drawn(None, 1, 10)
    assert relative(together["r1"], plain["r1"]) > 1e-2
    assert relative(together["r10"], plain["r10"]) < 1e-5  # its adapter adds nothing


def test_requests_whose_part_of_the_group_key_differs_share_no_call() -> None:
    adapters = Adapters(mixed=False)
    _, together = drawn(adapters, 1, 2, 11)
    assert ("r1", "r11") in adapters.runs
    assert ("r2",) in adapters.runs
    assert not any({"r1", "r2"} <= set(members) for members in adapters.runs)
    for seed in (1, 2, 11):
        _, alone = drawn(Adapters(mixed=False), seed)
        assert relative(together[f"r{seed}"], alone[f"r{seed}"]) < 1e-5


def test_the_probe_s_own_calls_run_inside_the_hooks() -> None:
    adapters = Adapters(mixed=True)
    HubStage.of(toy(), BASE, features=(adapters,))
    assert ("probe",) in adapters.runs


def test_what_a_request_leaves_with_a_feature_is_freed_when_it_ends_or_is_taken_back() -> None:
    adapters = Adapters(mixed=True)
    stage = HubStage.of(toy(), BASE, features=(adapters,))
    assert stage.held()["adapters"] == 0
    stage.arrive(ask(BASE, "a", "a cat", steps=3, seed=1), ask(BASE, "b", "a cat", steps=9, seed=2))
    stage.tick()
    assert stage.held()["adapters"] == 2
    stage.abort("b")
    stage.run()
    stage.tick()
    assert stage.held()["adapters"] == 0
    assert not adapters.closed
    stage.executor.close()
    assert adapters.closed


def test_a_part_is_changed_before_its_weights_are_read() -> None:
    model, cpu = resolve(SHAPES), torch.device("cpu")
    whole = load(model, dtype=torch.float32, device=cpu)
    shallow = load(model, dtype=torch.float32, device=cpu, reading=Shallow().reads)
    assert len(whole.transformer.transformer_blocks) > len(shallow.transformer.transformer_blocks) == 1
    theirs = dict(whole.transformer.named_parameters())
    assert all(torch.equal(theirs[name], one) for name, one in shallow.transformer.named_parameters())
    assert isinstance(shallow.transformer, type(whole.transformer))


def test_every_feature_that_refuses_a_config_is_heard_before_anything_loads() -> None:
    with pytest.raises(SpecError) as caught:
        claimed((Refused, Feature, AlsoRefused), a_config("step"), resolve(SHAPES))
    assert [fault.path for fault in caught.value.faults] == ["spec.refused", "spec.also"]


def test_a_model_that_does_not_suit_a_feature_is_a_fault_of_the_spec_that_says_why() -> None:
    with pytest.raises(
        SpecError, match=r"spec.unsure: expected false for this model: its blocks are of glass"
    ):
        HubStage.of(toy(), BASE, features=(Unsure(None),))


def test_a_target_under_which_a_model_draws_otherwise_is_refused_at_load() -> None:
    def other(value: Any) -> Any:
        return value + 0.5

    with pytest.raises(SpecError, match=r"spec.unsure: expected false for this model: it differs by"):
        HubStage.of(toy(), BASE, features=(Unsure(other),))
    same = HubStage.of(toy(), BASE, features=(Unsure(lambda value: value),))
    assert same.capability.batches


def test_a_runner_that_would_drop_a_feature_without_a_word_is_refused() -> None:
    with pytest.raises(SpecError, match=r"extensions.runner: expected a subclass of .* for spec.unsure"):
        assemble_rank.assemble_worker(
            lambda _device: toy(),
            lambda prompt, steps: {**BASE, "prompt": prompt, "num_inference_steps": steps},
            torch.device("cpu"),
            parts=WorkerParts(runner=LightRunner),
            features=(Unsure(None),),
        )


def test_a_stage_that_asks_for_nothing_gets_no_feature() -> None:
    config: StageConfig = a_config("step")
    assert assemble_rank.features_of(config, resolve(SHAPES)) == ()
