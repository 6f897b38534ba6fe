"""The digits network: a small convolutional U of two scales over 2 × 2 patches of pixels.

Rows never see each other: normalisation is within a row, so that a row's result depends on its company by rounding
alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stage_runtime.pipelines.families.digits.prompts import ANY_COLOUR, ANY_DIGIT

PATCH: Final = 2
CHANNELS: Final = 3
GROUP: Final = 8
"""Channels that are normalised together."""


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the network, as they stand in its config.json."""

    fine: int = 48
    """Channels at half of the picture's size."""
    coarse: int = 80
    """Channels at a quarter."""
    fine_blocks: int = 2
    """On the way down, and again on the way up."""
    coarse_blocks: int = 3
    condition: int = 128
    """Length of the vector that says time, digit and colour."""
    waves: int = 32
    """Frequencies that a time is written in."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


class Block(nn.Module):
    """Two convolutions beside a way around them; the condition scales and shifts what is between them."""

    def __init__(self, channels: int, condition: int) -> None:
        super().__init__()
        self.before = nn.GroupNorm(channels // GROUP, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.between = nn.GroupNorm(channels // GROUP, channels, affine=False)
        self.told = nn.Linear(condition, 2 * channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x (n, channels, h, w), condition (n, condition) → like x."""
        scale, shift = self.told(condition)[:, :, None, None].chunk(2, dim=1)
        y = self.first(F.silu(self.before(x)))
        y = self.second(F.silu(self.between(y) * (1 + scale) + shift))
        return x + y


class DigitsNetwork(nn.Module):
    """Velocity of the flow, noise minus picture, at any point between the two."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        fine, coarse, patch = config.fine, config.coarse, CHANNELS * PATCH**2
        self.digits = nn.Embedding(ANY_DIGIT + 1, config.condition)
        self.colours = nn.Embedding(ANY_COLOUR + 1, config.condition)
        self.times = nn.Sequential(
            nn.Linear(2 * config.waves, config.condition),
            nn.SiLU(),
            nn.Linear(config.condition, config.condition),
        )
        self.enter = nn.Conv2d(patch, fine, 3, padding=1)
        self.down = nn.ModuleList(Block(fine, config.condition) for _ in range(config.fine_blocks))
        self.shrink = nn.Conv2d(fine, coarse, 2, stride=2)
        self.middle = nn.ModuleList(Block(coarse, config.condition) for _ in range(config.coarse_blocks))
        self.grow = nn.Conv2d(coarse, fine * 4, 1)
        self.join = nn.Conv2d(2 * fine, fine, 1)
        self.up = nn.ModuleList(Block(fine, config.condition) for _ in range(config.fine_blocks))
        self.last = nn.GroupNorm(fine // GROUP, fine)
        self.leave = nn.Conv2d(fine, patch, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, digit: Tensor, colour: Tensor) -> Tensor:
        """Shapes: x (n, 3, h, w) with sides in multiples of 4, time (n,) in 0..1 (1 is noise), digit and colour (n,)
        as int64 → (n, 3, h, w).
        """
        told = self.times(self._waves(time).to(x.dtype)) + self.digits(digit) + self.colours(colour)
        told = F.silu(told)
        fine = self.enter(F.pixel_unshuffle(x, PATCH))
        for block in self.down:
            fine = block(fine, told)
        coarse = self.shrink(fine)
        for block in self.middle:
            coarse = block(coarse, told)
        fine = self.join(torch.cat([fine, F.pixel_shuffle(self.grow(coarse), 2)], dim=1))
        for block in self.up:
            fine = block(fine, told)
        return F.pixel_shuffle(self.leave(F.silu(self.last(fine))), PATCH)

    def _waves(self, time: Tensor) -> Tensor:
        """(n,) → (n, 2 · waves), in float32."""
        places = torch.arange(self.config.waves, device=time.device, dtype=torch.float32)
        angles = time.float()[:, None] * torch.exp(places * (math.log(500.0) / (self.config.waves - 1)))
        return torch.cat([angles.cos(), angles.sin()], dim=1)
