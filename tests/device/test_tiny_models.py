"""The tiny models are good for testing with: repeatable, and sensitive to everything a request says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

from support import tiny_models
from support.tiny_models import TinyModel

pytest_plugins = ("support.tiny_fixtures",)


def run(
    pipeline: DiffusionPipeline, name: str, prompt: str, seed: int, **changes: Any
) -> npt.NDArray[np.float32]:
    """The output of one plain call as numbers."""
    arguments = tiny_models.reference_arguments(name) | {"output_type": "pt"} | changes
    result = pipeline(prompt=prompt, generator=torch.Generator().manual_seed(seed), **arguments)
    return np.asarray(next(iter(result.values())))


@pytest.fixture(params=tiny_models.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_two_runs_of_one_request_are_equal_and_finite(name: str, tiny_model: TinyModel) -> None:
    pipeline = tiny_models.load_plain(tiny_model(name))
    first, second = (run(pipeline, name, "a red circle", 1) for _ in range(2))
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "blue"},
        {"seed": 2},
        {"num_inference_steps": 4},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_the_output_differs_when_anything_asked_for_differs(
    name: str, changes: dict[str, Any], tiny_model: TinyModel
) -> None:
    pipeline = tiny_models.load_plain(tiny_model(name))
    asked: dict[str, Any] = {"prompt": "a red circle", "seed": 1}
    difference = np.abs(run(pipeline, name, **asked) - run(pipeline, name, **(asked | changes)))
    assert difference.mean() > 1e-3


def test_two_builds_give_the_same_weights(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    first, second = tiny_model(name), tiny_models.build(name, tmp_path / name)
    files = sorted(path.relative_to(first) for path in first.rglob("*.safetensors"))
    assert files
    for file in files:
        weights, again = load_file(first / file), load_file(second / file)
        assert weights.keys() == again.keys()
        for key, tensor in weights.items():
            assert torch.isfinite(tensor).all(), f"{file} {key}"
            assert torch.equal(tensor, again[key]), f"{file} {key}"


@pytest.mark.parametrize("exact", tiny_models.EXACT_LENGTH)
def test_prompts_of_unequal_length_reach_the_denoiser_with_unequal_token_counts(
    exact: str, tiny_model: TinyModel
) -> None:
    pipeline = tiny_models.load_plain(tiny_model(exact))
    lengths: list[int] = []

    def note(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        text = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[2]
        lengths.append(text[0].shape[0])

    pipeline.transformer.register_forward_pre_hook(note, with_kwargs=True)
    for prompt in ("a red circle", "a red circle on a blue background"):
        run(pipeline, exact, prompt, 1, num_inference_steps=1)
    calls = len(lengths) // 2
    assert lengths[0] < lengths[calls]
