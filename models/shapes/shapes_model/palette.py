"""The colours of the small world: names and RGB values (0 to 255)."""

from __future__ import annotations

import numpy as np

RGB: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 215, 50),
    "orange": (245, 130, 30),
    "purple": (140, 50, 180),
    "cyan": (60, 205, 220),
    "pink": (250, 150, 190),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
    "gray": (128, 128, 128),
}

BACKGROUNDS: tuple[str, ...] = tuple(RGB)
THING_COLOURS: tuple[str, ...] = tuple(name for name in RGB if name != "gray")

PALETTE = np.array(list(RGB.values()), dtype=np.float32)
"""float32 [11, 3], in the order of `BACKGROUNDS`."""


def nearest_colour(rgb: np.ndarray) -> np.ndarray:
    """Index into `BACKGROUNDS` of the palette colour nearest to each pixel: float [..., 3] -> int [...]."""
    distances = ((rgb[..., None, :] - PALETTE) ** 2).sum(-1)
    return np.asarray(distances.argmin(-1))
