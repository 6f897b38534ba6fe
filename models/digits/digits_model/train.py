"""The whole recipe, from nothing to a checkpoint: rectified flow on pixels, one process, one thread.

PYTHONPATH=models/digits python -m digits_model.train --out RUN
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from digits_model.glyphs import PALETTE, coverage, random_pose
from stage_runtime.pipelines.families.digits.network import DigitsNetwork, NetworkConfig
from stage_runtime.pipelines.families.digits.prompts import ANY_COLOUR, ANY_DIGIT


@dataclass(frozen=True)
class Recipe:
    steps: int = 3000
    batch: int = 64
    pool: int = 16_000
    """Digits written before the start; colours are chosen anew each time."""
    rate: float = 2e-3
    warm_up: int = 100
    weight_decay: float = 0.01
    drop: float = 0.1
    """Share of pictures whose digit is not told, whose colour is not, and neither of which is."""
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Warm-up, then a cosine down to 2 % of the rate."""
        fallen = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1.0, step / self.warm_up) * (0.02 + 0.98 * fallen)

    def average_keeps(self, step: int) -> float:
        """The running average of the weights looks back over some 8 % of the steps so far."""
        return 1 - 1 / (10 + 0.08 * step)


class Data:
    """Pictures and what they show, drawn by the seed alone."""

    def __init__(self, recipe: Recipe) -> None:
        chance = np.random.default_rng(recipe.seed)
        self.digits = torch.arange(recipe.pool) % ANY_DIGIT
        self.covers = torch.from_numpy(np.stack([coverage(int(d), random_pose(chance)) for d in self.digits]))
        self.palette = torch.from_numpy(PALETTE / 255)
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(recipe.seed)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures (n, 3, 32, 32) in -1..1, their digits and colours (n,), some of them untold."""
        n, generator = self.recipe.batch, self.generator
        chosen = torch.randint(len(self.covers), (n,), generator=generator)
        colour = torch.randint(ANY_COLOUR, (n,), generator=generator)
        clean = self.covers[chosen][:, None] * self.palette[colour][:, :, None, None] * 2 - 1
        luck, drop = torch.rand(n, generator=generator), self.recipe.drop
        digit = self.digits[chosen].masked_fill(luck < 2 * drop, ANY_DIGIT)
        colour = colour.masked_fill((luck > drop) & (luck < 3 * drop), ANY_COLOUR)
        return clean, digit, colour


def train(recipe: Recipe, log_every: int = 50) -> DigitsNetwork:
    """The running average of the weights at the end."""
    torch.manual_seed(recipe.seed)
    network = DigitsNetwork(NetworkConfig()).to(memory_format=torch.channels_last)
    average = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    data, losses, began = Data(recipe), [], time.time()
    for step in range(1, recipe.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(step)
        loss = _loss(network, data)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                list(average.parameters()), list(network.parameters()), 1 - recipe.average_keeps(step)
            )
        losses.append(loss.item())
        if step % log_every == 0:
            clock = f"wall {time.time() - began:.0f} cpu {time.process_time():.0f}"
            print(f"step {step} loss {sum(losses) / len(losses):.4f} {clock}", flush=True)
            losses.clear()
    return average


def _loss(network: DigitsNetwork, data: Data) -> Tensor:
    clean, digit, colour = data.batch()
    noise = torch.randn(clean.shape, generator=data.generator)
    level = torch.sigmoid(torch.randn(len(clean), generator=data.generator))
    at = level[:, None, None, None]
    mixed = ((1 - at) * clean + at * noise).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        velocity = network(mixed, level, digit, colour)
    return F.mse_loss(velocity.float(), noise - clean)


def save(network: DigitsNetwork, folder: Path) -> None:
    """A checkpoint as the runtime loads it: an index, the sizes, the weights in bfloat16."""
    part = folder / "denoiser"
    part.mkdir(parents=True, exist_ok=True)
    index = {"_class_name": "DigitsModel", "denoiser": ["digits", "DigitsNetwork"]}
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    (part / "config.json").write_text(json.dumps(network.config.as_json(), indent=2) + "\n")
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in network.state_dict().items()}
    save_file(weights, part / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    save(train(Recipe(steps=options.steps)), options.out / "checkpoint")


if __name__ == "__main__":
    main()
