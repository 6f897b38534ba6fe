"""Draws scenes with anti-aliased edges, in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shapes_model.palette import RGB
from shapes_model.scenes import PICTURE_SIZE, SHAPES, PlacedScene, Spot


def _heart() -> list[tuple[float, float]]:
    """The usual heart curve as a 24-gon, about 2.07 wide and 1.87 high."""
    corners = []
    for step in range(24):
        angle = 2 * math.pi * step / 24
        height = (
            13 * math.cos(angle) - 5 * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)
        )
        corners.append((16 * math.sin(angle) ** 3 / 15.5, -height / 15.5 - 0.1))
    return corners


def _box(half_width: float, half_height: float) -> list[tuple[float, float]]:
    w, h = half_width, half_height
    return [(-w, -h), (w, -h), (w, h), (-w, h)]


CORNERS: dict[str, np.ndarray] = {
    name: np.array(corners, dtype=np.float32)
    for name, corners in {
        "square": _box(0.88, 0.88),
        "triangle": [(0, -1.05), (1.05, 0.78), (-1.05, 0.78)],
        "diamond": [(0, -1.1), (1.1, 0), (0, 1.1), (-1.1, 0)],
        "bar": _box(1.12, 0.50),
        "heart": _heart(),
    }.items()
}
"""Every shape but the circle as a polygon of radius one: float32 [corners, 2]."""


def _polygon_distance(dx: np.ndarray, dy: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Signed distance to a polygon, negative inside. dx, dy: [n, h, w]; corners: [n, k, 2] -> [n, h, w]."""
    nearest = np.full(dx.shape, np.inf, dtype=np.float32)
    sign = np.ones(dx.shape, dtype=np.float32)
    for here, before in zip(range(corners.shape[1]), range(-1, corners.shape[1] - 1), strict=True):
        vx, vy = corners[:, here, 0, None, None], corners[:, here, 1, None, None]
        ex, ey = corners[:, before, 0, None, None] - vx, corners[:, before, 1, None, None] - vy
        wx, wy = dx - vx, dy - vy
        along = np.clip((wx * ex + wy * ey) / (ex * ex + ey * ey), 0, 1)
        bx, by = wx - ex * along, wy - ey * along
        nearest = np.minimum(nearest, bx * bx + by * by)
        below_start, above_end, left_of_edge = dy >= vy, dy < vy + ey, ex * wy > ey * wx
        crosses = (below_start & above_end & left_of_edge) | (~below_start & ~above_end & ~left_of_edge)
        sign = np.where(crosses, -sign, sign)
    return sign * np.sqrt(nearest)


def coverage(shape: str, spots: Sequence[Spot], size: int = PICTURE_SIZE) -> np.ndarray:
    """How much of each pixel the shape covers, for each of n spots: float32 [n, size, size], 0 to 1."""
    x, y, radius = (
        np.array([getattr(spot, name) for spot in spots], dtype=np.float32)[:, None, None]
        for name in ("x", "y", "radius")
    )
    centres = np.arange(size, dtype=np.float32) + np.float32(0.5)
    dx = np.broadcast_to(centres[None, None, :] - x, (len(spots), size, size))
    dy = np.broadcast_to(centres[None, :, None] - y, (len(spots), size, size))
    if shape == "circle":
        distance = np.sqrt(dx * dx + dy * dy) - radius
    else:
        distance = _polygon_distance(dx, dy, CORNERS[shape][None] * radius)
    return np.asarray(np.clip(np.float32(0.5) - distance, 0, 1), dtype=np.float32)


def render(scenes: Sequence[PlacedScene]) -> np.ndarray:
    """uint8 [n, 64, 64, 3]: later things cover earlier ones."""
    grounds = np.array([RGB[placed.scene.background] for placed in scenes], dtype=np.float32)
    pictures = np.repeat(grounds[:, None, None, :], PICTURE_SIZE, 1).repeat(PICTURE_SIZE, 2)
    for slot in (0, 1):
        for shape in SHAPES:
            chosen = [
                index
                for index, placed in enumerate(scenes)
                if len(placed.spots) > slot and placed.scene.things[slot].shape == shape
            ]
            if not chosen:
                continue
            cover = coverage(shape, [scenes[index].spots[slot] for index in chosen])[..., None]
            colours = np.array(
                [RGB[scenes[index].scene.things[slot].colour] for index in chosen], dtype=np.float32
            )
            pictures[chosen] = pictures[chosen] * (1 - cover) + colours[:, None, None, :] * cover
    return np.round(pictures).astype(np.uint8)
