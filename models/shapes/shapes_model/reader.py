"""Reads a picture: its background and the things on it, with colour, shape, size and place. Knows no caption."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shapes_model.palette import BACKGROUNDS, PALETTE, nearest_colour
from shapes_model.render import coverage
from shapes_model.scenes import PICTURE_SIZE, SHAPES, SIZE_CUT, Spot

LEAST_OVERLAP = 0.75
"""Intersection over union with the ideal shape below which a thing has no shape."""
LEAST_AREA = 14
"""Smaller specks, in pixels of a 64 x 64 picture, are not things."""
GROUND_DISTANCE = 50
"""RGB distance from the background beyond which a pixel belongs to a thing."""
BORDER = 2
"""Width of the frame, in pixels, whose commonest colour is the background."""
LEAST_INTERIOR = 6
"""With fewer inner pixels than this, the colour is read from the whole thing."""


@dataclass(frozen=True)
class SeenThing:
    """`shape` is None if no shape fits well enough; x, y and radius are in pixels of a 64 x 64 picture."""

    colour: str
    shape: str | None
    size: str
    x: float
    y: float
    radius: float
    overlap: float


@dataclass(frozen=True)
class Reading:
    background: str
    things: tuple[SeenThing, ...]


def components(mask: np.ndarray) -> Iterator[np.ndarray]:
    """The 4-connected parts of a boolean picture, each as a mask, in scan order."""
    left = mask.copy()
    height, width = mask.shape
    for start in zip(*np.nonzero(mask), strict=True):
        if not left[start]:
            continue
        part = np.zeros_like(mask)
        stack = [start]
        left[start] = False
        while stack:
            y, x = stack.pop()
            part[y, x] = True
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= near[0] < height and 0 <= near[1] < width and left[near]:
                    left[near] = False
                    stack.append(near)
        yield part


def _shifted(mask: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """The mask combined with its four neighbours: logical_or grows it by one pixel, logical_and shrinks it."""
    out = mask.copy()
    for to, of in ((np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:])):
        out[to] = combine(out[to], mask[of])
        out[:, to] = combine(out[:, to], mask[:, of])
    return out


def _centroid(cover: np.ndarray) -> tuple[float, float]:
    centres = np.arange(cover.shape[0]) + 0.5
    area = cover.sum()
    return float(cover.sum(0) @ centres / area), float(cover.sum(1) @ centres / area)


@functools.cache
def _unit(shape: str) -> tuple[float, float, float]:
    """Area and centroid of the shape of radius one around the origin, measured on a fine drawing."""
    cover = coverage(shape, [Spot(128, 128, 100)], 256)[0].astype(np.float64)
    x, y = _centroid(cover)
    return float(cover.sum()) / 1e4, (x - 128) / 100, (y - 128) / 100


def _best_fit(cover: np.ndarray) -> tuple[float, str, Spot]:
    """The shape of equal area and centroid that overlaps best: overlap, shape, spot."""
    area = float(cover.sum())
    x, y = _centroid(cover)
    fits = []
    for shape in SHAPES:
        unit_area, unit_x, unit_y = _unit(shape)
        radius = math.sqrt(area / unit_area)
        spot = Spot(x - unit_x * radius, y - unit_y * radius, radius)
        ideal = coverage(shape, [spot], cover.shape[0])[0]
        overlap = float(np.minimum(cover, ideal).sum() / np.maximum(cover, ideal).sum())
        fits.append((overlap, shape, spot))
    return max(fits, key=lambda fit: fit[0])


def _size_name(radius: float) -> str:
    return "small" if radius < SIZE_CUT else "large"


def _read_thing(rgb: np.ndarray, names: np.ndarray, mask: np.ndarray, ground: int) -> SeenThing:
    """The thing under `mask`. Its soft edge is read off where each pixel lies between background and own colour."""
    interior = _shifted(mask, np.logical_and)
    votes = np.bincount(names[interior if interior.sum() >= LEAST_INTERIOR else mask], minlength=len(PALETTE))
    votes[ground] = 0
    colour = int(votes.argmax())
    scale = rgb.shape[0] / PICTURE_SIZE
    if not votes[colour]:  # off the background's colour, yet nearer to it than to any other
        y, x = (float(axis.mean() + 0.5) / scale for axis in np.nonzero(mask))
        radius = math.sqrt(mask.sum() / math.pi) / scale
        return SeenThing(BACKGROUNDS[ground], None, _size_name(radius), x, y, radius, overlap=0.0)
    towards = PALETTE[colour] - PALETTE[ground]
    share = np.clip((rgb - PALETTE[ground]) @ towards / (towards @ towards), 0, 1)
    cover = np.where(_shifted(mask, np.logical_or), share, 0)
    overlap, shape, spot = _best_fit(cover)
    radius = spot.radius / scale
    return SeenThing(
        colour=BACKGROUNDS[colour],
        shape=shape if overlap >= LEAST_OVERLAP else None,
        size=_size_name(radius),
        x=spot.x / scale,
        y=spot.y / scale,
        radius=radius,
        overlap=overlap,
    )


def read_picture(picture: np.ndarray) -> Reading:
    """uint8 [side, side, 3] -> what is on it."""
    if picture.ndim != 3 or picture.shape[0] != picture.shape[1] or picture.shape[2] != 3:
        raise ValueError(f"expected a square RGB picture [side, side, 3], got {picture.shape}")
    rgb = picture.astype(np.float32)
    names = nearest_colour(rgb)
    sides = (names[:BORDER], names[-BORDER:], names[:, :BORDER], names[:, -BORDER:])
    ground = int(
        np.bincount(np.concatenate([side.ravel() for side in sides]), minlength=len(PALETTE)).argmax()
    )
    apart = np.sqrt(((rgb - PALETTE[ground]) ** 2).sum(-1)) > GROUND_DISTANCE
    least = LEAST_AREA * (picture.shape[0] / PICTURE_SIZE) ** 2
    parts = [part for part in components(apart) if part.sum() >= least]
    return Reading(BACKGROUNDS[ground], tuple(_read_thing(rgb, names, part, ground) for part in parts))
