"""Scenes are sampled and held out in the same way for ever, since the shipped weights depend on it."""

from __future__ import annotations

import random

import pytest

from shapes_model.captions import full_caption
from shapes_model.render import render
from shapes_model.scenes import EXTENT, PICTURE_SIZE, PlacedScene, sample_placed, sample_scene

FIRST_PROMPTS = [
    "a small red heart right of a small green triangle on a pink background",
    "a small white bar left of a small black circle on an orange background",
    "a large black square above a large black diamond on an orange background",
]


def sample_many(seed: int, count: int = 500) -> list[PlacedScene]:
    chance = random.Random(seed)
    return [sample_placed(chance, held_out=True) for _ in range(count)]


def test_the_first_held_out_prompts_of_the_exam_never_change() -> None:
    chance = random.Random(1234)
    prompts = [full_caption(sample_placed(chance, held_out=True).scene) for _ in range(3)]
    assert prompts == FIRST_PROMPTS


def test_one_scene_in_ten_is_held_out() -> None:
    chance = random.Random(5)
    share = sum(sample_scene(chance).held_out for _ in range(5000)) / 5000
    assert share == pytest.approx(0.1, abs=0.02)


def test_the_same_seed_gives_the_same_scenes() -> None:
    assert sample_many(seed=6) == sample_many(seed=6)


def test_every_thing_lies_inside_the_picture() -> None:
    for placed in sample_many(seed=7):
        for spot in placed.spots:
            reach = spot.radius * EXTENT
            assert reach <= min(spot.x, spot.y)
            assert max(spot.x, spot.y) + reach <= PICTURE_SIZE


def test_the_things_of_a_pair_never_touch() -> None:
    pairs = [placed for placed in sample_many(seed=8) if len(placed.spots) == 2]
    for first, second in (placed.spots for placed in pairs):
        apart = max(abs(first.x - second.x), abs(first.y - second.y))
        assert apart > (first.radius + second.radius) * EXTENT


def test_a_picture_is_drawn_the_same_alone_and_among_others() -> None:
    scenes = sample_many(seed=9, count=20)
    together = render(scenes)
    assert all(
        (render([placed])[0] == picture).all() for placed, picture in zip(scenes, together, strict=True)
    )
