"""The recipe of the digits model: decided by its seed alone, and it learns."""

from __future__ import annotations

from pathlib import Path

import torch

from digits_model.train import Recipe, save, train
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve

SHORT = Recipe(steps=3, batch=8, pool=40, warm_up=1)


def test_two_trainings_of_one_seed_end_in_the_same_weights() -> None:
    first, second = train(SHORT).state_dict(), train(SHORT).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_is_trained_is_saved_as_the_runtime_loads_it(tmp_path: Path) -> None:
    network = train(SHORT)
    save(network, tmp_path)
    loaded = load(resolve(tmp_path), dtype=torch.bfloat16, device=torch.device("cpu"))
    saved = loaded.denoiser.state_dict()
    assert all(torch.equal(tensor.bfloat16(), saved[name]) for name, tensor in network.state_dict().items())
