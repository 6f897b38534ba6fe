"""Captions say what the scene is, and can be read back."""

from __future__ import annotations

import random

import pytest

from shapes_model.captions import CaptionError, Claim, ThingClaim, free_caption, full_caption, parse_caption
from shapes_model.scenes import Scene, Thing, sample_scene

COUNT = 2000


def sample_scenes(seed: int) -> list[Scene]:
    chance = random.Random(seed)
    return [sample_scene(chance) for _ in range(COUNT)]


def claim_everything(scene: Scene) -> Claim:
    things = tuple(ThingClaim(thing.colour, thing.shape, thing.size) for thing in scene.things)
    return Claim(things, scene.background, scene.relation, scene.position)


def test_a_full_caption_reads_back_as_every_attribute_of_its_scene() -> None:
    for scene in sample_scenes(seed=1):
        assert parse_caption(full_caption(scene)) == claim_everything(scene)


def test_a_free_caption_reads_back_as_claims_that_its_scene_fulfils() -> None:
    chance = random.Random(2)
    for scene in sample_scenes(seed=2):
        claim, whole = parse_caption(free_caption(scene, chance)), claim_everything(scene)
        assert claim.background in (None, whole.background)
        assert claim.relation in (None, whole.relation)
        assert claim.position in (None, whole.position)
        for stated, meant in zip(claim.things, whole.things, strict=True):
            assert (stated.colour, stated.shape) == (meant.colour, meant.shape)
            assert stated.size in (None, meant.size)


def test_free_captions_leave_each_attribute_out_about_one_time_in_ten() -> None:
    chance = random.Random(3)
    claims = [parse_caption(free_caption(scene, chance)) for scene in sample_scenes(seed=3)]
    silent = sum(claim.background is None for claim in claims) / COUNT
    assert silent == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        (
            "a small blue heart below a green bar on a red background",
            Claim((ThingClaim("blue", "heart", "small"), ThingClaim("green", "bar")), "red", "below"),
        ),
        ("An orange circle.", Claim((ThingClaim("orange", "circle"),))),
        (
            "a white square on a black background, in the middle",
            Claim((ThingClaim("white", "square"),), "black", position="center"),
        ),
        (
            "a red bar on the left on a gray background",
            Claim((ThingClaim("red", "bar"),), "gray", position="left"),
        ),
        (
            "a red bar on the left of a pink diamond",
            Claim((ThingClaim("red", "bar"), ThingClaim("pink", "diamond")), None, "left"),
        ),
        (
            "a red bar and a pink diamond",
            Claim((ThingClaim("red", "bar"), ThingClaim("pink", "diamond"))),
        ),
    ],
)
def test_each_wording_of_the_grammar_has_one_meaning(text: str, claim: Claim) -> None:
    assert parse_caption(text) == claim


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a cat on a red background",
        "a red circle near a blue square",
        "three red circles",
        "a red circle at the top on a blue background, at the top",
    ],
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(CaptionError):
        parse_caption(text)


def test_the_articles_agree_with_the_words_after_them() -> None:
    scene = Scene("orange", (Thing("small", "red", "bar"),), position="top")
    assert full_caption(scene) == "a small red bar at the top on an orange background"
