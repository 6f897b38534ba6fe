"""A request whose numbers stop being finite fails, alone, wherever it happens; weights that do it don't start."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from safetensors.torch import load_file, save_file

from stage_runtime.core.errors import ModelError, NonFiniteOutput
from stage_runtime.core.outcome import Completed, Failed, Modality, Progressed
from stage_runtime.pipelines.arguments import small_arguments
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.runner.output import PIXELS, modality_of, tensor_to_output, to_output
from support.hub_stage import LATENTS, HubStage, array, ask, relative
from support.toy_pipeline import BASE, ToyDenoiser, ToyOutput, ToyPipeline, embed, toy

SHAPES = Path(__file__).resolve().parents[2] / "models" / "shapes" / "checkpoint"
POISON = "poison"
VALUES = (math.nan, math.inf, -math.inf)


class PoisonedDenoiser(ToyDenoiser):
    """Answers one prompt with `value`, alone or in company."""

    value = math.nan

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        answer = super().forward(hidden_states, timestep, prompt_embeds)
        poisoned = torch.stack([torch.equal(row, embed(POISON)) * torch.ones(()) for row in prompt_embeds])
        return answer.masked_fill(poisoned[:, None, None, None] > 0, self.value)


class ToyDecoder(ModelMixin, ConfigMixin):
    """Pictures of latents. It hides what isn't finite when `hides`, and makes it for the latents of one seed."""

    hides = False
    value = 0.0

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(1))

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        pictures = latents.nan_to_num() if self.hides else latents * self.gain
        return pictures + self.value if self.value else pictures


class DecodingPipeline(ToyPipeline):
    """Decodes, and clamps as processors of pictures do."""

    def __init__(self, transformer: Any, scheduler: Any, vae: ToyDecoder) -> None:
        super().__init__(transformer, scheduler)
        self.register_modules(vae=vae)

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(super().denoise(scheduler, latents, embeds)).clamp(-9, 9)


def decoding(denoiser: type[ToyDenoiser] = ToyDenoiser) -> Any:
    return DecodingPipeline(denoiser().eval(), FlowMatchEulerDiscreteScheduler(), ToyDecoder().eval())


def failure(stage: HubStage, name: str = POISON, **more: Any) -> Failed:
    stage.arrive(ask(BASE, name, name, steps=3, seed=1, **more))
    ended = stage.run()[name]
    assert isinstance(ended, Failed), ended
    return ended


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("output", [LATENTS, PIXELS], ids=["latents", "pixels"])
def test_a_denoiser_that_answers_so_fails_its_request_alone_and_its_neighbours_are_equal(
    value: float, output: Any
) -> None:
    pipeline = toy(ToyPipeline, PoisonedDenoiser)
    stage = HubStage.of(pipeline, BASE, output=output)
    pipeline.transformer.value = value
    names = ("a cat", POISON, "a dog")
    stage.arrive(*(ask(BASE, name, name, steps=3, seed=place) for place, name in enumerate(names)))
    ended = stage.run()
    failed = ended.pop(POISON)
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (500, "non_finite_output")
    alone = HubStage.of(toy(), BASE, output=output)
    alone.arrive(ask(BASE, "a cat", "a cat", steps=3, seed=0), ask(BASE, "a dog", "a dog", steps=3, seed=2))
    for name, want in alone.run().items():
        got = ended[name]
        assert isinstance(got, Completed)
        assert isinstance(want, Completed)
        assert relative(array(got.output).astype(float), array(want.output).astype(float)) <= 1e-6
    assert set(stage.held().values()) == {0}


@pytest.mark.parametrize("value", VALUES)
def test_a_decoder_that_makes_them_of_sound_latents_fails_the_request_though_it_is_clamped(
    value: float,
) -> None:
    pipeline = decoding()
    stage = HubStage.of(pipeline, BASE, output=PIXELS)
    pipeline.vae.value = value
    assert "pixels" in failure(stage, "a cat").message


@pytest.mark.parametrize("value", VALUES)
def test_latents_are_looked_at_before_a_decoder_that_hides_them(value: float) -> None:
    pipeline = decoding(PoisonedDenoiser)
    stage = HubStage.of(pipeline, BASE, output=PIXELS)
    pipeline.transformer.value, pipeline.vae.hides = value, True
    assert "latents" in failure(stage).message


def test_a_preview_that_can_not_be_shown_is_left_out_and_its_request_fails() -> None:
    pipeline = decoding(PoisonedDenoiser)
    stage = HubStage.of(pipeline, BASE, output=PIXELS)
    assert failure(stage, preview_steps=(1, 2)).code == "non_finite_output"
    assert not any(told.preview for told in stage.told if isinstance(told, Progressed))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("field", "shape"),
    [("images", (4, 4, 3)), ("frames", (2, 4, 4, 3)), ("audios", (2, 16)), ("image", (4, 4, 3))],
)
def test_one_number_of_any_kind_of_output_is_enough(value: float, field: str, shape: tuple[int, ...]) -> None:
    made = np.zeros(shape, np.float32)
    to_output(SimpleNamespace(**{field: made[None]}), 8000)
    made.flat[-1] = value
    with pytest.raises(NonFiniteOutput):
        to_output(SimpleNamespace(**{field: made[None]}), 8000)
    channels_first = torch.from_numpy(np.moveaxis(made, -1, -3) if made.ndim > 2 else made)
    with pytest.raises(NonFiniteOutput):
        tensor_to_output(SimpleNamespace(**{field: channels_first[None]}), 8000)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["transformer", "text_encoder", "vae"])
def test_a_checkpoint_whose_weights_are_not_finite_does_not_start(
    part: str, value: float, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(SHAPES, tmp_path / "shapes"))
    for file in (folder / part).glob("*.safetensors"):
        save_file({name: tensor.fill_(value) for name, tensor in load_file(file).items()}, file)
    model = resolve(folder)
    pipeline = load(model, dtype=torch.float32, device=torch.device("cpu"))
    arguments = small_arguments(model, None, 2)
    with pytest.raises(ModelError, match="not finite"):
        HubStage.of(pipeline, arguments, output=PIXELS)


@pytest.mark.parametrize(
    ("result", "modality", "shape"),
    [
        ({"images": np.zeros((1, 8, 6, 3))}, Modality.IMAGE, (8, 6, 3)),
        ({"image": np.zeros((1, 8, 6, 3))}, Modality.IMAGE, (8, 6, 3)),
        ({"images": np.zeros((5, 8, 6, 3))}, Modality.VIDEO, (5, 8, 6, 3)),
        ({"images": [[np.zeros((8, 6, 3))] * 5]}, Modality.VIDEO, (5, 8, 6, 3)),
        ({"frames": np.zeros((1, 5, 8, 6, 3))}, Modality.VIDEO, (5, 8, 6, 3)),
        ({"video": np.zeros((1, 5, 8, 6, 3)), "sound": None}, Modality.VIDEO, (5, 8, 6, 3)),
        ({"audios": np.zeros((1, 2, 99))}, Modality.AUDIO, (2, 99)),
        ({"images": np.zeros((1, 8, 6, 3), np.uint8)}, Modality.IMAGE, (8, 6, 3)),
    ],
)
def test_what_was_made_is_found_and_given_whole(
    result: dict[str, Any], modality: Modality, shape: tuple[int, ...]
) -> None:
    made = SimpleNamespace(**result)
    output = to_output(made)
    assert (modality_of(made), output.modality, output.shape) == (modality, modality, shape)


@pytest.mark.parametrize(
    "first", [torch.zeros(1, 3, 8, 6), torch.zeros(5, 3, 8, 6), [torch.zeros(5, 3, 8, 6)]]
)
def test_tensors_of_pictures_and_of_frames_are_told_apart_too(first: Any) -> None:
    output = tensor_to_output(SimpleNamespace(images=first))
    assert output.shape == ((8, 6, 3) if len(first) == 1 and first[0].ndim == 3 else (5, 8, 6, 3))


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"image_embeds": np.zeros((1, 4))}, "neither pictures nor video nor sound"),
        ({"rgb": np.zeros((1, 8, 8, 3)), "depth": np.zeros((1, 8, 8, 1))}, "neither pictures"),
        ({"frames": np.zeros((1, 2, 8, 8, 3)), "audio": np.zeros((1, 9))}, "audio beside its video"),
        ({"video": np.zeros((1, 2, 8, 8, 3)), "sound": np.zeros((1, 9))}, "sound beside its video"),
    ],
)
def test_what_can_not_be_given_whole_is_refused_at_load(result: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        modality_of(SimpleNamespace(**result))


def test_an_odd_result_is_no_picture() -> None:
    with pytest.raises(ValueError, match="holds one image of shape"):
        to_output(ToyOutput(np.zeros((1, 8))))
