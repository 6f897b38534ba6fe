"""Trains the denoiser and the text encoder together from nothing, by flow matching on the latents of a trained VAE."""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from shapes_model.architecture import LATENT_CHANNELS, new_denoiser, new_pipeline, new_text_encoder
from shapes_model.captions import free_caption
from shapes_model.evaluate import Exam, draw
from shapes_model.fast_forward import plain_attention, single_frame_autoencoder
from shapes_model.optimizer import Muon, Schedule
from shapes_model.ranks import Ranks, gradients_of, torch_generator
from shapes_model.render import render
from shapes_model.resume import Snapshots
from shapes_model.scenes import sample_placed
from shapes_model.tokenizer import LONGEST_PROMPT, PREFIX_TOKENS, PROMPT_TEMPLATE, build_tokenizer
from shapes_model.train_vae import encode, to_signal

LATENT_GRID = (1, 8, 8)
"""Frames, rows and columns of image tokens; each is a 2 x 2 patch of latents."""


@dataclass(frozen=True)
class Recipe:
    steps: int
    hold_until: int
    batch: int = 32
    """Pictures a rank and step."""
    pool: int = 24_000
    """Scenes a rank draws from; their captions are worded anew each time."""
    pair_share: float = 0.85
    caption_drop: float = 0.1
    seed: int = 0
    warm_up: int = 200
    muon_rate: float = 2e-3
    adam_rate: float = 1.5e-3
    weight_decay: float = 0.01
    noise_mean: tuple[float, float] = (0.8, 0.4)
    """Of the noise level's logit, at the start and from `noise_settles` on: binding is learnt first, then shape."""
    noise_settles: int = 5000
    noise_deviation: float = 1.2
    save_every: int = 1000
    examine_every: int = 2000

    @property
    def schedule(self) -> Schedule:
        return Schedule(min(self.warm_up, self.steps), self.hold_until, self.steps, floor=0.01)

    def noise_mean_at(self, step: int) -> float:
        first, last = self.noise_mean
        return first + (last - first) * min(1.0, step / self.noise_settles)

    def average_keeps(self, step: int) -> float:
        """The running average of the weights looks back over 6 % of the steps so far, at most 1000."""
        return min(0.999, 1 - 1 / (10 + 0.06 * step))


def pack(latents: Tensor) -> Tensor:
    """[n, 8, 16, 16] -> tokens [n, 64, 32], as the pipeline packs them."""
    n, channels, height, width = latents.shape
    patches = latents.view(n, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(n, height * width // 4, channels * 4)


class Pool:
    """Scenes and their latents (float16, normalised as the pipeline does), different on each rank."""

    @torch.no_grad()
    def __init__(self, autoencoder: AutoencoderKLQwenImage, recipe: Recipe, ranks: Ranks) -> None:
        chance = ranks.draw("denoiser scenes", recipe.seed)
        config = autoencoder.config
        mean, deviation = (
            torch.tensor(values).view(1, LATENT_CHANNELS, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        self.scenes, parts = [], []
        with single_frame_autoencoder():
            for _ in range(0, recipe.pool, 100):
                placed = [
                    sample_placed(chance, held_out=False, pair_share=recipe.pair_share) for _ in range(100)
                ]
                latents = encode(autoencoder, to_signal(render(placed)))[0][:, :, 0]
                parts.append(((latents - mean) / deviation).half())
                self.scenes += [p.scene for p in placed]
        self.latents = torch.cat(parts)


@dataclass(frozen=True)
class Batch:
    token_ids: Tensor
    """int64 [n, 56]"""
    token_mask: Tensor
    clean: Tensor
    """float [n, 64, 32]"""
    noise: Tensor
    level: Tensor
    """float [n]: 0 is the picture, 1 is noise."""


class Trainer:
    def __init__(self, autoencoder: AutoencoderKLQwenImage, recipe: Recipe, ranks: Ranks) -> None:
        self.recipe, self.ranks, self.autoencoder = recipe, ranks, autoencoder
        torch.manual_seed(recipe.seed)
        self.tokenizer = build_tokenizer()
        self.text_encoder = new_text_encoder(len(self.tokenizer))
        self.text_encoder.set_attn_implementation("eager")
        self.denoiser = new_denoiser()
        self.averaged_text_encoder = copy.deepcopy(self.text_encoder).eval()
        self.averaged_denoiser = copy.deepcopy(self.denoiser).eval()
        self.text_encoder.train()
        self.denoiser.train()
        trained = ((self.denoiser, self.averaged_denoiser), (self.text_encoder, self.averaged_text_encoder))
        pairs = [
            (live, averaged)
            for module, average in trained
            for live, averaged in zip(module.parameters(), average.parameters(), strict=True)
            if live.requires_grad
        ]
        self.parameters = [live for live, _ in pairs]
        self.averages = [averaged for _, averaged in pairs]
        self._make_optimizers()
        self.pool = Pool(autoencoder, recipe, ranks)

    def _make_optimizers(self) -> None:
        """Muon for the matrices inside the layers but the modulation, AdamW for everything else."""
        recipe = self.recipe
        layers = (self.denoiser.transformer_blocks, self.text_encoder.model.language_model.layers)
        hidden = [
            p
            for module in layers
            for name, p in module.named_parameters()
            if p.ndim == 2 and "_mod" not in name
        ]
        chosen = {id(p) for p in hidden}
        self.muon = Muon(
            hidden, recipe.muon_rate, weight_decay=recipe.weight_decay, dtype=torch.bfloat16, ranks=self.ranks
        )
        self.adam = torch.optim.AdamW(
            [p for p in self.parameters if id(p) not in chosen],
            lr=recipe.adam_rate,
            betas=(0.9, 0.98),
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def snapshots(self, folder: Path) -> Snapshots:
        names = ("denoiser", "text_encoder", "averaged_denoiser", "averaged_text_encoder", "adam", "muon")
        return Snapshots(folder, self.ranks, {name: getattr(self, name) for name in names})

    def batch(self, step: int) -> Batch:
        """Wholly determined by the seed, the rank and the step."""
        recipe = self.recipe
        chance = self.ranks.draw("denoiser step", recipe.seed, step)
        chosen = [chance.randrange(len(self.pool.scenes)) for _ in range(recipe.batch)]
        captions = [free_caption(self.pool.scenes[index], chance) for index in chosen]
        captions = [
            chance.choice(("", " ")) if chance.random() < recipe.caption_drop else c for c in captions
        ]
        tokens = self.tokenizer(
            [PROMPT_TEMPLATE.format(caption) for caption in captions],
            padding="max_length",
            max_length=LONGEST_PROMPT,
            return_tensors="pt",
        )
        clean = pack(self.pool.latents[chosen].float())
        generator = torch_generator(chance)
        noise = torch.randn(clean.shape, generator=generator)
        logit = torch.randn(
            recipe.batch, generator=generator
        ) * recipe.noise_deviation + recipe.noise_mean_at(step)
        return Batch(tokens.input_ids, tokens.attention_mask, clean, noise, torch.sigmoid(logit))

    def loss(self, batch: Batch) -> Tensor:
        """The denoiser predicts noise minus picture."""
        level = batch.level[:, None, None]
        with torch.autocast("cpu", torch.bfloat16):
            text = self.text_encoder.model.language_model(
                input_ids=batch.token_ids, attention_mask=batch.token_mask, use_cache=False
            ).last_hidden_state
            predicted = self.denoiser(
                hidden_states=(1 - level) * batch.clean + level * batch.noise,
                encoder_hidden_states=text[:, PREFIX_TOKENS:],
                encoder_hidden_states_mask=batch.token_mask[:, PREFIX_TOKENS:].bool(),
                timestep=batch.level,
                img_shapes=[[LATENT_GRID]] * len(batch.clean),
                return_dict=False,
            )[0]
        return ((predicted.float() - (batch.noise - batch.clean)) ** 2).mean()

    def step(self, step: int) -> float:
        """One update; the loss before it (of this rank)."""
        loss = self.loss(self.batch(step))
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        self.ranks.average(gradients_of(self.parameters))
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        multiplier = self.recipe.schedule.at(step)
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.adam_rate * multiplier
        self.adam.step()
        self.muon.step(multiplier)
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.parameters, 1 - self.recipe.average_keeps(step))
        return loss.item()

    def examine(self, exam: Exam) -> str:
        """Held-out prompts of another seed than the final evaluation, twelve steps."""
        pipeline = new_pipeline(
            self.averaged_denoiser, self.averaged_text_encoder, self.autoencoder, self.tokenizer
        )
        return exam.grade(draw(pipeline, exam.prompts, steps=12, guidance=3.0, batch=64)).line()


def train(autoencoder: AutoencoderKLQwenImage, recipe: Recipe, out: Path, ranks: Ranks) -> Trainer:
    trainer = Trainer(autoencoder, recipe, ranks)
    snapshots = trainer.snapshots(out / "snapshots")
    start, done = time.time(), snapshots.restore()
    exam = Exam.held_out(64, seed=99)
    losses: list[float] = []
    for step in range(done + 1, recipe.steps + 1):
        losses.append(trainer.step(step))
        if ranks.first and step % 100 == 0:
            loss = sum(losses) / len(losses)
            clock = f"wall {time.time() - start:.0f} cpu {time.process_time():.0f}"
            print(f"denoiser step {step} loss {loss:.4f} {clock}", flush=True)
            losses.clear()
        if step % recipe.save_every == 0:
            snapshots.save(step)
        if ranks.first and (step % recipe.examine_every == 0 or step == recipe.steps):
            print(f"exam at step {step}: {trainer.examine(exam)}", flush=True)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--hold-until", type=int, required=True, help="the step from which the rates fall")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    ranks = Ranks.join()
    autoencoder = AutoencoderKLQwenImage.from_pretrained(options.vae).eval().requires_grad_(False)
    with plain_attention():
        trainer = train(autoencoder, Recipe(options.steps, options.hold_until), options.out, ranks)
    if ranks.first:
        trainer.averaged_denoiser.save_pretrained(options.out / "transformer")
        trainer.averaged_text_encoder.save_pretrained(options.out / "text_encoder")
    ranks.barrier()


if __name__ == "__main__":
    main()
