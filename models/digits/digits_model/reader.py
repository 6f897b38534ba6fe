"""Reads a picture: which digit, which colour. By the nearest of many written ones, not by a network. Numpy only."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from digits_model.glyphs import PALETTE, RGB, SIDE, STROKES, Pose, coverage

GRID = 24
"""Side of the square that ink is stretched to before it is compared, so that place and size don't matter."""
LEAST_LIKENESS = 0.75
"""Intersection over union with the nearest written digit below which a picture shows none."""
LEAST_INK = 30
"""Pixels, all shades summed up."""
NARROW = 0.55
"""What is at most so many times as wide as high could be a one, whose foot is a line: it is widened less."""


@dataclass(frozen=True)
class Reading:
    """`digit` is None when no written one is like it. `spill`: how far the ink's colour is off, in RGB (0 to 255)."""

    digit: int | None
    colour: str | None
    likeness: float
    spill: float

    def shows(self, digit: int, colour: str) -> bool:
        """True when it is just that."""
        return self.digit == digit and self.colour == colour


def read_picture(picture: np.ndarray) -> Reading:
    """uint8 [32, 32, 3] → what is on it. Raises: ValueError for another shape."""
    if picture.shape != (SIDE, SIDE, 3):
        raise ValueError(f"expected a picture [{SIDE}, {SIDE}, 3], got {picture.shape}")
    rgb = picture.astype(np.float32)
    strongest = rgb.max()
    ink = rgb.max(-1) / max(strongest, 1.0)
    if strongest < 60 or ink.sum() < LEAST_INK:
        return Reading(None, None, 0.0, 0.0)
    shade = np.average(rgb, axis=(0, 1), weights=ink**8)
    distances = np.sqrt(((PALETTE - shade) ** 2).sum(-1))
    colour = int(distances.argmin())
    cover = np.clip(rgb @ PALETTE[colour] / (PALETTE[colour] @ PALETTE[colour]), 0, 1)
    likeness, digit = _nearest(cover)
    return Reading(
        digit=digit if likeness >= LEAST_LIKENESS else None,
        colour=tuple(RGB)[colour],
        likeness=likeness,
        spill=float(distances[colour]),
    )


def _nearest(cover: np.ndarray) -> tuple[float, int]:
    """The best likeness to any written digit, and that digit."""
    written, digits = _written()
    stretched = _stretched(cover).ravel()
    both = np.minimum(written, stretched).sum(-1)
    either = np.maximum(written, stretched).sum(-1)
    likeness = both / either
    best = int(likeness.argmax())
    return float(likeness[best]), int(digits[best])


@functools.cache
def _written() -> tuple[np.ndarray, np.ndarray]:
    """Digits in many poses: their stretched ink float32 [n, GRID²], and which digit each is."""
    poses = [
        Pose(height=height, width=width, lean=lean, pen=pen, x=0.0, y=0.0)
        for height, width, lean, pen in itertools.product(
            (0.9, 1.05), (0.9, 1.1), (-0.1, 0.0, 0.1, 0.2, 0.3), (1.4, 1.75, 2.1)
        )
    ]
    rows = [
        (_stretched(coverage(digit, pose)).ravel(), digit) for digit in range(len(STROKES)) for pose in poses
    ]
    return np.stack([row for row, _ in rows]), np.array([digit for _, digit in rows])


def _stretched(cover: np.ndarray) -> np.ndarray:
    """The ink's own box, sampled bilinearly on a square; a narrow one keeps its shape. float32 [GRID, GRID]."""
    inked = cover > 0.3
    rows, columns = np.nonzero(inked.any(1))[0], np.nonzero(inked.any(0))[0]
    if not len(rows):
        return np.zeros((GRID, GRID), dtype=np.float32)
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    width = max(right - left, NARROW * (bottom - top))
    middle = (left + right) / 2
    steps = (np.arange(GRID) + 0.5) / GRID
    y = np.clip(top + steps * (bottom - top) - 0.5, 0, SIDE - 1)
    x = np.clip(middle + (steps - 0.5) * width - 0.5, 0, SIDE - 1)
    y0, x0 = np.minimum(y.astype(int), SIDE - 2), np.minimum(x.astype(int), SIDE - 2)
    fy, fx = (y - y0)[:, None], (x - x0)[None]
    upper = cover[y0][:, x0] * (1 - fx) + cover[y0][:, x0 + 1] * fx
    lower = cover[y0 + 1][:, x0] * (1 - fx) + cover[y0 + 1][:, x0 + 1] * fx
    return np.asarray(upper * (1 - fy) + lower * fy, dtype=np.float32)
