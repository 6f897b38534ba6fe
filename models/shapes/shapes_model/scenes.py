"""What can be drawn: one or two flat things on a plain background, how scenes are sampled, and which are held out.

Lengths are in pixels of a 64 x 64 picture, x to the right and y downwards, from the top left corner.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from shapes_model.palette import BACKGROUNDS, THING_COLOURS

PICTURE_SIZE = 64
SHAPES = ("circle", "square", "triangle", "diamond", "bar", "heart")
RADII = {"small": (8.0, 8.8), "large": (11.4, 13.0)}
SIZE_CUT = 9.8
"""A thing whose radius is below this is small."""
RELATIONS = ("left", "right", "above", "below")
POSITIONS = (
    "top left", "top", "top right",
    "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip

EXTENT = 1.12
"""The farthest any shape reaches from its centre, in radii."""
HELD_OUT_BYTES = 26
"""A scene is held out when the first byte of its digest is below this: about one in ten."""


@dataclass(frozen=True)
class Thing:
    size: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """What a caption can say: a pair has a relation (of the first thing to the second), a single thing a position."""

    background: str
    things: tuple[Thing, ...]
    relation: str | None = None
    position: str | None = None

    @property
    def key(self) -> str:
        named = [f"{thing.size} {thing.colour} {thing.shape}" for thing in self.things]
        return "|".join([self.background, self.relation or "", self.position or "", *named])

    @property
    def held_out(self) -> bool:
        """True for the scenes that training never sees in any wording."""
        return hashlib.sha256(self.key.encode()).digest()[0] < HELD_OUT_BYTES


@dataclass(frozen=True)
class Spot:
    """Where a thing is drawn: its centre and radius in pixels."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class PlacedScene:
    scene: Scene
    spots: tuple[Spot, ...]


def sample_thing(rng: random.Random, colours: list[str]) -> Thing:
    return Thing(rng.choice(list(RADII)), rng.choice(colours), rng.choice(SHAPES))


def sample_scene(rng: random.Random, pair_share: float = 0.6) -> Scene:
    """Any scene, held out or not; `pair_share` of them have two things, which differ in colour or shape."""
    background = rng.choice(BACKGROUNDS)
    colours = [name for name in THING_COLOURS if name != background]
    if rng.random() >= pair_share:
        position = rng.choice(POSITIONS)
        return Scene(background, (sample_thing(rng, colours),), position=position)
    first, second = sample_thing(rng, colours), sample_thing(rng, colours)
    while (first.colour, first.shape) == (second.colour, second.shape):
        second = sample_thing(rng, colours)
    return Scene(background, (first, second), relation=rng.choice(RELATIONS))


def place_single(position: str, radius: float, rng: random.Random) -> Spot:
    """On the 3 x 3 grid, up to two pixels off."""
    column = ("right" in position) - ("left" in position)
    row = ("bottom" in position) - ("top" in position)
    x = 32 + 14 * column + rng.uniform(-2, 2)
    y = 32 + 14 * row + rng.uniform(-2, 2)
    return Spot(x, y, radius)


def place_pair(relation: str, radii: tuple[float, float], rng: random.Random) -> tuple[Spot, Spot]:
    """Two things inside the picture, clearly apart along the relation's axis and nearly level across it."""
    swapped = relation in ("right", "below")
    near_radius, far_radius = radii[::-1] if swapped else radii
    near_reach, far_reach = near_radius * EXTENT + 1, far_radius * EXTENT + 1
    gap = near_reach + far_reach + 1
    near = rng.uniform(near_reach, max(near_reach, min(PICTURE_SIZE - far_reach - gap, 26)))
    far = rng.uniform(max(near + gap, 38), max(PICTURE_SIZE - far_reach, near + gap))
    reach = max(near_reach, far_reach)
    level = rng.uniform(max(reach, 22), min(PICTURE_SIZE - reach, 42))
    spots = []
    for along, radius, own_reach in ((near, near_radius, near_reach), (far, far_radius, far_reach)):
        across = min(max(level + rng.uniform(-4, 4), own_reach), PICTURE_SIZE - own_reach)
        x, y = (along, across) if relation in ("left", "right") else (across, along)
        spots.append(Spot(x, y, radius))
    return (spots[1], spots[0]) if swapped else (spots[0], spots[1])


def place(scene: Scene, rng: random.Random) -> PlacedScene:
    radii = tuple(rng.uniform(*RADII[thing.size]) for thing in scene.things)
    if scene.position is not None:
        return PlacedScene(scene, (place_single(scene.position, radii[0], rng),))
    assert scene.relation is not None
    return PlacedScene(scene, place_pair(scene.relation, (radii[0], radii[1]), rng))


def sample_placed(rng: random.Random, *, held_out: bool, pair_share: float = 0.6) -> PlacedScene:
    """A placed scene from the held-out tenth or from the rest."""
    while True:
        scene = sample_scene(rng, pair_share)
        if scene.held_out == held_out:
            return place(scene, rng)
