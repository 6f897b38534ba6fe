"""A few steps of each training: the loss falls, and a run taken up again ends in the same weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLQwenImage

from shapes_model import train_denoiser, train_vae
from shapes_model.architecture import new_autoencoder
from shapes_model.fast_forward import plain_attention, single_frame_autoencoder
from shapes_model.optimizer import Schedule, orthogonalise
from shapes_model.ranks import Ranks

ALONE = Ranks(rank=0, world=1)


def denoiser_recipe(**changes: int) -> train_denoiser.Recipe:
    return train_denoiser.Recipe(
        **({"steps": 12, "hold_until": 12, "batch": 8, "pool": 100, "warm_up": 2} | changes)
    )


@pytest.fixture(scope="module")
def autoencoder() -> AutoencoderKLQwenImage:
    torch.manual_seed(0)
    return new_autoencoder().eval().requires_grad_(False)


def denoiser_trainer(autoencoder: AutoencoderKLQwenImage) -> train_denoiser.Trainer:
    return train_denoiser.Trainer(autoencoder, denoiser_recipe(), ALONE)


def weights(trainer: train_denoiser.Trainer) -> Iterable[torch.Tensor]:
    return trainer.denoiser.state_dict().values()


def test_a_few_steps_of_the_denoisers_training_lower_its_loss(autoencoder: AutoencoderKLQwenImage) -> None:
    trainer = denoiser_trainer(autoencoder)
    with plain_attention():
        losses = [trainer.step(step) for step in range(1, 13)]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_a_resumed_denoiser_ends_in_the_same_weights(
    autoencoder: AutoencoderKLQwenImage, tmp_path: Path
) -> None:
    whole, resumed = denoiser_trainer(autoencoder), denoiser_trainer(autoencoder)
    with plain_attention():
        for step in (1, 2):
            whole.step(step)
        whole.snapshots(tmp_path).save(2)
        whole.step(3)
        assert resumed.snapshots(tmp_path).restore() == 2
        resumed.step(3)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))


def test_a_few_steps_of_the_autoencoders_training_lower_its_error() -> None:
    torch.manual_seed(0)
    recipe = train_vae.Recipe(steps=30, batch=8, pool=100)
    trainer = train_vae.Trainer(new_autoencoder(), recipe, ALONE)
    with single_frame_autoencoder():
        errors = [trainer.step(step) for step in range(1, 21)]
    assert sum(errors[-5:]) < 0.7 * sum(errors[:5])


def test_the_single_frame_autoencoder_computes_what_diffusers_computes(
    autoencoder: AutoencoderKLQwenImage,
) -> None:
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    expected = autoencoder.encode(pictures[:, :, None]).latent_dist.mean
    with single_frame_autoencoder():
        mean, _ = train_vae.encode(autoencoder, pictures)
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-5)


def test_plain_attention_computes_what_diffusers_computes(autoencoder: AutoencoderKLQwenImage) -> None:
    trainer = denoiser_trainer(autoencoder)
    torch.nn.init.normal_(trainer.denoiser.proj_out.weight, std=0.1)
    batch = trainer.batch(1)
    expected = trainer.loss(batch)
    with plain_attention():
        loss = trainer.loss(batch)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)


def test_the_rate_warms_up_holds_and_falls_to_its_floor() -> None:
    schedule = Schedule(warm_up=10, hold_until=40, steps=100, floor=0.01)
    rates = [schedule.at(step) for step in (1, 10, 40, 70, 100)]
    assert rates == pytest.approx([0.1, 1, 1, 0.505, 0.01])


def test_the_end_of_a_run_may_move_while_its_rate_is_still_held() -> None:
    short, long = Schedule(10, 40, 100, 0.01), Schedule(10, 40, 200, 0.01)
    assert all(short.at(step) == long.at(step) for step in range(1, 41))


def test_orthogonalising_brings_every_singular_value_near_one() -> None:
    matrices = torch.randn(3, 8, 12, generator=torch.Generator().manual_seed(2))
    unit = orthogonalise(matrices / matrices.norm(dim=(1, 2), keepdim=True), iterations=8)
    assert torch.linalg.svdvals(unit).sub(1).abs().max() < 0.35
    assert math.isclose(float(unit.norm()) ** 2, 24, rel_tol=0.2)
