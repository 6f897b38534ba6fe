"""Draws the digits: strokes of a pen of some width, leaning, shifted and stretched by chance. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SIDE = 32
"""Pixels of a picture's side."""
HEIGHT, WIDTH = 21.0, 13.0
"""Pixels of a digit as it stands, without the pen's width."""
RGB: dict[str, tuple[int, int, int]] = {
    "red": (225, 40, 40),
    "orange": (245, 135, 25),
    "yellow": (245, 225, 60),
    "green": (45, 170, 65),
    "cyan": (60, 210, 225),
    "blue": (50, 85, 230),
    "purple": (160, 60, 200),
    "white": (245, 245, 245),
}
PALETTE = np.array(list(RGB.values()), dtype=np.float32)
"""float32 [8, 3], in the order of RGB."""
Points = list[tuple[float, float]]


def _arc(x: float, y: float, rx: float, ry: float, turn: tuple[float, float]) -> Points:
    """`turn`: from and to, in degrees clockwise from the right, since y points down."""
    start, end = turn
    angles = np.radians(np.linspace(start, end, 1 + max(10, round(abs(end - start) / 20))))
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles]


STROKES: tuple[tuple[Points, ...], ...] = (
    (_arc(0.5, 0.5, 0.5, 0.5, (0, 360)),),
    ([(0.2, 0.22), (0.55, 0.0), (0.55, 1.0)],),
    ([*_arc(0.5, 0.28, 0.45, 0.28, (-170, 40)), (0.05, 1.0), (1.0, 1.0)],),
    (_arc(0.45, 0.26, 0.45, 0.26, (-150, 90)), _arc(0.45, 0.75, 0.5, 0.25, (-90, 150))),
    ([(0.7, 1.0), (0.7, 0.0), (0.0, 0.68), (1.0, 0.68)],),
    ([(0.92, 0.0), (0.15, 0.0), (0.1, 0.45), *_arc(0.45, 0.69, 0.5, 0.31, (-125, 150))],),
    (_arc(0.5, 0.69, 0.48, 0.31, (0, 360)), [(0.82, 0.02), (0.4, 0.2), (0.12, 0.45), (0.02, 0.69)]),
    ([(0.0, 0.0), (1.0, 0.0), (0.35, 1.0)],),
    (_arc(0.5, 0.25, 0.4, 0.25, (0, 360)), _arc(0.5, 0.74, 0.5, 0.26, (0, 360))),
    (_arc(0.5, 0.31, 0.48, 0.31, (0, 360)), [(0.98, 0.31), (0.88, 0.55), (0.6, 0.8), (0.18, 0.98)]),
)
"""Of each digit, in a box of side 1; y points down."""


class Pose(NamedTuple):
    """How one digit is written."""

    height: float
    """Times HEIGHT."""
    width: float
    lean: float
    """Pixels to the right at the top, and to the left at the foot, for each pixel of height."""
    pen: float
    """Half of the stroke's width, in pixels."""
    x: float
    """Of the middle, in pixels from the picture's."""
    y: float


UPRIGHT = Pose(1.0, 1.0, 0.0, 1.7, 0.0, 0.0)


def random_pose(chance: np.random.Generator) -> Pose:
    """One that keeps the digit within the picture."""
    return Pose(
        height=chance.uniform(0.85, 1.1),
        width=chance.uniform(0.85, 1.15),
        lean=chance.uniform(-0.1, 0.3),
        pen=chance.uniform(1.4, 2.1),
        x=chance.uniform(-2.5, 2.5),
        y=chance.uniform(-1.8, 1.8),
    )


def coverage(digit: int, pose: Pose = UPRIGHT, side: int = SIDE) -> np.ndarray:
    """How much of each pixel is ink: float32 [side, side] in 0..1."""
    centres = np.arange(side, dtype=np.float32) + 0.5
    px, py = centres[None, :, None], centres[:, None, None]
    nearest = np.full((side, side), np.inf, dtype=np.float32)
    for stroke in STROKES[digit]:
        a, b = _placed(stroke[:-1], pose, side), _placed(stroke[1:], pose, side)
        dx, dy = (b - a).T
        along = ((px - a[:, 0]) * dx + (py - a[:, 1]) * dy) / (dx * dx + dy * dy)
        along = np.clip(along, 0, 1)
        distance = np.hypot(px - a[:, 0] - along * dx, py - a[:, 1] - along * dy)
        nearest = np.minimum(nearest, distance.min(-1))
    return np.clip(pose.pen + 0.5 - nearest, 0, 1).astype(np.float32)


def picture(cover: np.ndarray, colour: int) -> np.ndarray:
    """Ink of a colour on black: float32 [side, side, 3] in 0..1."""
    return np.asarray(cover[..., None] * (PALETTE[colour] / 255))


def _placed(points: Sequence[tuple[float, float]], pose: Pose, side: int) -> np.ndarray:
    """Points of the box in pixels: float32 [n, 2]."""
    spots = np.asarray(points, dtype=np.float32) - 0.5
    y = spots[:, 1] * HEIGHT * pose.height
    x = spots[:, 0] * WIDTH * pose.width - y * pose.lean
    return np.stack([x + side / 2 + pose.x, y + side / 2 + pose.y], axis=1)
