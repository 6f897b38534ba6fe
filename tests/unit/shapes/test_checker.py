"""The checker accepts what was asked for and nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

from shapes_model.captions import Claim, full_caption, parse_caption
from shapes_model.checker import ATTRIBUTES, CaptionError, check_picture, judge
from shapes_model.palette import BACKGROUNDS, THING_COLOURS
from shapes_model.reader import LEAST_OVERLAP, Reading, read_picture
from shapes_model.render import render
from shapes_model.scenes import (
    POSITIONS,
    RADII,
    RELATIONS,
    SHAPES,
    PlacedScene,
    Scene,
    Thing,
    place,
    sample_placed,
)

COUNT = 300
ASKED = "a small red circle left of a large blue heart on a white background"


@pytest.fixture(scope="module")
def scenes() -> list[PlacedScene]:
    chance = random.Random(2024)
    return [sample_placed(chance, held_out=True) for _ in range(COUNT)]


@pytest.fixture(scope="module")
def pictures(scenes: list[PlacedScene]) -> np.ndarray:
    return render(scenes)


@pytest.fixture(scope="module")
def readings(pictures: np.ndarray) -> list[Reading]:
    return [read_picture(picture) for picture in pictures]


@pytest.fixture(scope="module")
def claims(scenes: list[PlacedScene]) -> list[Claim]:
    return [parse_caption(full_caption(placed.scene)) for placed in scenes]


def asked_picture() -> np.ndarray:
    """A picture that shows what `ASKED` says."""
    things = (Thing("small", "red", "circle"), Thing("large", "blue", "heart"))
    scene = Scene("white", things, relation="left")
    return render([place(scene, random.Random(11))])[0]


def other(chance: random.Random, choices: tuple[str, ...], now: str | None) -> str:
    return chance.choice([choice for choice in choices if choice != now])


def one_attribute_changed(claim: Claim, chance: random.Random) -> Iterator[Claim]:
    """The claim with one thing's shape, colour or size, the background or the place replaced."""
    index = chance.randrange(len(claim.things))
    thing = claim.things[index]
    for change in (
        {"shape": other(chance, SHAPES, thing.shape)},
        {"colour": other(chance, THING_COLOURS, thing.colour)},
        {"size": other(chance, tuple(RADII), thing.size)},
    ):
        things = list(claim.things)
        things[index] = dataclasses.replace(thing, **change)
        if sorted(map(str, things)) != sorted(map(str, claim.things)):
            yield dataclasses.replace(claim, things=tuple(things))
    yield dataclasses.replace(claim, background=other(chance, BACKGROUNDS, claim.background))
    if claim.relation:
        yield dataclasses.replace(claim, relation=other(chance, RELATIONS, claim.relation))
    else:
        yield dataclasses.replace(claim, position=other(chance, POSITIONS, claim.position))


def test_every_true_scene_is_accepted(readings: list[Reading], claims: list[Claim]) -> None:
    refused = [v.explain() for v in map(judge, readings, claims) if not v.ok]
    assert refused == []


def test_true_shapes_overlap_far_more_than_the_bar_asks(readings: list[Reading]) -> None:
    assert min(thing.overlap for reading in readings for thing in reading.things) > LEAST_OVERLAP + 0.15


def test_every_true_scene_is_accepted_under_noise_of_twelve_levels(
    pictures: np.ndarray, claims: list[Claim]
) -> None:
    noise = np.random.default_rng(0).normal(0, 12, pictures.shape)
    noisy = np.clip(pictures + noise, 0, 255).astype(np.uint8)
    refused = [v.explain() for v in map(judge, map(read_picture, noisy), claims) if not v.ok]
    assert refused == []


def test_no_picture_passes_for_the_next_prompt(readings: list[Reading], claims: list[Claim]) -> None:
    assert not any(judge(reading, claim).ok for reading, claim in zip(readings, claims[1:], strict=False))


def test_no_picture_passes_for_its_prompt_with_one_attribute_changed(
    readings: list[Reading], claims: list[Claim]
) -> None:
    chance = random.Random(3)
    wrong = [
        (reading, changed)
        for reading, claim in zip(readings, claims, strict=True)
        for changed in one_attribute_changed(claim, chance)
    ]
    assert len(wrong) > 4 * COUNT
    assert not any(judge(reading, changed).ok for reading, changed in wrong)


@pytest.mark.parametrize(
    ("prompt", "wrong"),
    [
        ("a small red circle left of a large green heart on a white background", "colour"),
        ("a small red circle left of a large blue diamond on a white background", "shape"),
        ("a large red circle left of a large blue heart on a white background", "size"),
        ("a small red circle above a large blue heart on a white background", "place"),
        ("a small red circle left of a large blue heart on a pink background", "background"),
    ],
)
def test_only_the_attribute_that_differs_is_wrong(prompt: str, wrong: str) -> None:
    verdict = check_picture(asked_picture(), prompt)
    assert verdict.wrong == (wrong,)


def test_a_thing_too_many_is_a_wrong_count() -> None:
    picture = asked_picture()
    picture[1:8, 1:8] = (20, 20, 20)
    assert check_picture(picture, ASKED).wrong == ("count",)


def test_what_the_prompt_leaves_open_is_not_held_against_the_picture() -> None:
    assert check_picture(asked_picture(), "a red circle and a blue heart").ok


def test_an_empty_picture_shows_nothing_of_what_was_asked() -> None:
    white = np.full((64, 64, 3), 245, np.uint8)
    verdict = check_picture(white, ASKED)
    assert verdict.wrong == tuple(name for name in ATTRIBUTES if name != "background")


def test_a_picture_of_pure_noise_is_refused() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert not check_picture(noise, ASKED).ok


def test_a_verdict_explains_itself_in_one_line() -> None:
    verdict = check_picture(asked_picture(), "a red circle above a blue heart")
    assert verdict.explain().startswith(
        "wrong place: asked for red circle above blue heart on any background; saw "
    )
    assert "\n" not in verdict.explain()


def test_a_prompt_outside_the_grammar_is_an_error_and_no_verdict() -> None:
    with pytest.raises(CaptionError):
        check_picture(asked_picture(), "a photograph of a cat")


def test_a_picture_that_is_not_square_rgb_is_an_error() -> None:
    with pytest.raises(ValueError, match="square RGB"):
        check_picture(np.zeros((64, 64, 4), np.uint8), ASKED)


def test_larger_pictures_are_read_in_the_same_units() -> None:
    enlarged = asked_picture().repeat(2, 0).repeat(2, 1)
    assert check_picture(enlarged, ASKED).ok
