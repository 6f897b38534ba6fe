"""Trains the VAE from nothing, then measures what the checker says of its reconstructions: the ceiling of the model."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor

from shapes_model.architecture import new_autoencoder
from shapes_model.captions import full_caption
from shapes_model.checker import check_picture
from shapes_model.fast_forward import single_frame_autoencoder
from shapes_model.optimizer import Muon, Schedule
from shapes_model.ranks import Ranks, gradients_of, torch_generator
from shapes_model.render import render
from shapes_model.resume import Snapshots
from shapes_model.scenes import PICTURE_SIZE, PlacedScene, place, sample_placed, sample_scene

CROP = 32
LATENT_CELL = 4
"""Pixels a latent cell is wide; crops start on this grid."""


@dataclass(frozen=True)
class Recipe:
    steps: int
    batch: int = 32
    """Pictures a rank and step."""
    pool: int = 8000
    """Scenes a rank draws from."""
    seed: int = 0
    muon_rate: float = 6e-3
    adam_rate: float = 3e-3
    kl_weight: float = 1e-4
    crops_until: float = 0.85
    """The share of the steps that sees 32 x 32 crops; the rest sees a quarter as many whole pictures."""
    save_every: int = 400

    @property
    def schedule(self) -> Schedule:
        return Schedule(min(50, self.steps), int(0.3 * self.steps), self.steps, floor=0.02)


def encode(autoencoder: AutoencoderKLQwenImage, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 3, h, w] in -1 to 1 -> mean and log variance, each [n, 8, 1, h/4, w/4]."""
    return autoencoder.quant_conv(autoencoder.encoder(pictures[:, :, None])).chunk(2, 1)


def decode(autoencoder: AutoencoderKLQwenImage, latents: Tensor) -> Tensor:
    return autoencoder.decoder(autoencoder.post_quant_conv(latents))[:, :, 0]


def to_signal(pictures: np.ndarray) -> Tensor:
    """uint8 [n, h, w, 3] -> float [n, 3, h, w] in -1 to 1."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pictures(signal: Tensor) -> np.ndarray:
    return ((signal.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()


class Pool:
    """Scenes drawn once and rendered once; every step cuts new crops out of them."""

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        chance = ranks.draw("vae scenes", recipe.seed)
        self.scenes = [place(sample_scene(chance), chance) for _ in range(recipe.pool)]
        self.pictures = np.concatenate([render(self.scenes[i : i + 100]) for i in range(0, recipe.pool, 100)])

    def whole(self, chance: random.Random, count: int) -> Tensor:
        return to_signal(self.pictures[[chance.randrange(len(self.scenes)) for _ in range(count)]])

    def crops(self, chance: random.Random, count: int) -> Tensor:
        """Around things, on the latent grid."""
        cuts = []
        for _ in range(count):
            index = chance.randrange(len(self.scenes))
            spot = chance.choice(self.scenes[index].spots)
            top, left = (_crop_start(centre, chance) for centre in (spot.y, spot.x))
            cuts.append(self.pictures[index, top : top + CROP, left : left + CROP])
        return to_signal(np.stack(cuts))


def _crop_start(centre: float, chance: random.Random) -> int:
    start = LATENT_CELL * round((centre - CROP / 2 + chance.uniform(-10, 10)) / LATENT_CELL)
    return min(PICTURE_SIZE - CROP, max(0, start))


class Trainer:
    def __init__(self, autoencoder: AutoencoderKLQwenImage, recipe: Recipe, ranks: Ranks) -> None:
        self.autoencoder, self.recipe, self.ranks = autoencoder, recipe, ranks
        self.parameters = list(autoencoder.parameters())
        kernels = [p for p in self.parameters if p.ndim >= 4 and min(p.shape[:2]) >= 4]
        chosen = {id(p) for p in kernels}
        self.muon = Muon(kernels, recipe.muon_rate)
        rest = [p for p in self.parameters if id(p) not in chosen]
        self.adam = torch.optim.AdamW(rest, lr=recipe.adam_rate, weight_decay=0.0, betas=(0.9, 0.98))
        self.pool = Pool(recipe, ranks)

    def step(self, step: int) -> float:
        """One update; the mean squared error before it (of this rank)."""
        recipe = self.recipe
        chance = self.ranks.draw("vae step", recipe.seed, step)
        if step <= recipe.crops_until * recipe.steps:
            pictures = self.pool.crops(chance, recipe.batch)
        else:
            pictures = self.pool.whole(chance, recipe.batch // 4)
        mean, log_variance = encode(self.autoencoder, pictures)
        log_variance = log_variance.clamp(-20, 10)
        noise = torch.randn(mean.shape, generator=torch_generator(chance))
        drawn = decode(self.autoencoder, mean + torch.exp(0.5 * log_variance) * noise)
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
        error = F.mse_loss(drawn, pictures)
        loss = error + 0.5 * F.l1_loss(drawn, pictures) + recipe.kl_weight * divergence
        self.autoencoder.zero_grad(set_to_none=True)
        loss.backward()
        self.ranks.average(gradients_of(self.parameters))
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        multiplier = recipe.schedule.at(step)
        for group in self.adam.param_groups:
            group["lr"] = recipe.adam_rate * multiplier
        self.adam.step()
        self.muon.step(multiplier)
        return error.item()


@torch.no_grad()
def normalise(autoencoder: AutoencoderKLQwenImage) -> None:
    """Write the latents' mean and deviation into the configuration; clear the taps that single frames never use."""
    chance = random.Random(77)
    scenes = [sample_placed(chance, held_out=False) for _ in range(512)]
    latents = torch.cat([encode(autoencoder, part)[0] for part in to_signal(render(scenes)).split(64)])
    autoencoder.register_to_config(
        latents_mean=latents.mean((0, 2, 3, 4)).tolist(), latents_std=latents.std((0, 2, 3, 4)).tolist()
    )
    for module in autoencoder.modules():
        if isinstance(module, QwenImageCausalConv3d) and module.weight.shape[2] > 1:
            module.weight[:, :, :-1] = 0


@torch.no_grad()
def reconstruct(autoencoder: AutoencoderKLQwenImage, scenes: list[PlacedScene]) -> np.ndarray:
    signal = to_signal(render(scenes))
    return np.concatenate(
        [to_pictures(decode(autoencoder, encode(autoencoder, part)[0])) for part in signal.split(50)]
    )


def gate(autoencoder: AutoencoderKLQwenImage, count: int = 300) -> str:
    """Percent of held-out scenes the checker still accepts after encoding and decoding, and the PSNR in dB."""
    chance = random.Random(5)
    scenes = [sample_placed(chance, held_out=True) for _ in range(count)]
    drawn = reconstruct(autoencoder, scenes)
    accepted = [check_picture(p, full_caption(s.scene)).ok for p, s in zip(drawn, scenes, strict=True)]
    error = np.mean((drawn.astype(np.float64) - render(scenes)) ** 2)
    psnr = 10 * np.log10(255**2 / error)
    return f"{100 * np.mean(accepted):.1f} % of {count} reconstructions accepted, {psnr:.1f} dB"


def train(recipe: Recipe, out: Path, ranks: Ranks) -> AutoencoderKLQwenImage:
    torch.manual_seed(recipe.seed)
    autoencoder = new_autoencoder()
    trainer = Trainer(autoencoder, recipe, ranks)
    parts = {"autoencoder": autoencoder, "adam": trainer.adam, "muon": trainer.muon}
    snapshots = Snapshots(out / "snapshots", ranks, parts)
    start, done = time.time(), snapshots.restore()
    for step in range(done + 1, recipe.steps + 1):
        error = trainer.step(step)
        if ranks.first and step % 100 == 0:
            print(
                f"vae step {step} psnr {10 * np.log10(4 / error):.1f} wall {time.time() - start:.0f}"
                f" cpu {time.process_time():.0f}",
                flush=True,
            )
        if step % recipe.save_every == 0:
            snapshots.save(step)
    normalise(autoencoder)
    return autoencoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    ranks = Ranks.join()
    with single_frame_autoencoder():
        autoencoder = train(Recipe(options.steps), options.out, ranks)
        if ranks.first:
            print("gate:", gate(autoencoder), flush=True)
            autoencoder.save_pretrained(options.out)
    ranks.barrier()


if __name__ == "__main__":
    main()
