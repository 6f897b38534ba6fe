"""The caption grammar, both ways: a scene to text, and text back to what it claims."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shapes_model.palette import BACKGROUNDS, THING_COLOURS
from shapes_model.scenes import RADII, SHAPES, Scene, Thing

RELATION_PHRASES: dict[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath"),
}
POSITION_PHRASES: dict[str, tuple[str, ...]] = {
    "top left": ("in the top left corner", "at the top left"),
    "top": ("at the top",),
    "top right": ("in the top right corner", "at the top right"),
    "left": ("on the left",),
    "center": ("in the center", "in the middle"),
    "right": ("on the right",),
    "bottom left": ("in the bottom left corner", "at the bottom left"),
    "bottom": ("at the bottom",),
    "bottom right": ("in the bottom right corner", "at the bottom right"),
}
DROP = 0.1
"""How often a free caption leaves an attribute out."""


class CaptionError(ValueError):
    """The text is not a caption of this grammar."""


@dataclass(frozen=True)
class ThingClaim:
    colour: str
    shape: str
    size: str | None = None


@dataclass(frozen=True)
class Claim:
    """What a caption states, and nothing more; None is what it leaves open."""

    things: tuple[ThingClaim, ...]
    background: str | None = None
    relation: str | None = None
    position: str | None = None


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def name_thing(thing: Thing, with_size: bool = True) -> str:
    return with_article(f"{thing.size + ' ' if with_size else ''}{thing.colour} {thing.shape}")


def full_caption(scene: Scene) -> str:
    """The caption that states every attribute in the first wording; it fixes the scene."""
    names = [name_thing(thing) for thing in scene.things]
    background = f" on {with_article(scene.background)} background"
    if scene.position is not None:
        return f"{names[0]} {POSITION_PHRASES[scene.position][0]}{background}"
    assert scene.relation is not None
    return f"{names[0]} {RELATION_PHRASES[scene.relation][0]} {names[1]}{background}"


def free_caption(scene: Scene, rng: random.Random) -> str:
    """A caption in any wording that leaves out each attribute in one case of ten."""

    def keep() -> bool:
        return rng.random() > DROP

    names = [name_thing(thing, with_size=keep()) for thing in scene.things]
    background = f" on {with_article(scene.background)} background" if keep() else ""
    if scene.position is not None:
        text = names[0] + background
        if keep():
            phrase = rng.choice(POSITION_PHRASES[scene.position])
            at_once = rng.random() < 0.7
            text = f"{names[0]} {phrase}{background}" if at_once else f"{text}, {phrase}"
    else:
        assert scene.relation is not None
        joint = rng.choice(RELATION_PHRASES[scene.relation]) if keep() else "and"
        text = f"{names[0]} {joint} {names[1]}{background}"
    if rng.random() < 0.15:
        text = text[0].upper() + text[1:] + "."
    return text


def _meanings(phrases: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {phrase: meaning for meaning, variants in phrases.items() for phrase in variants}


def _any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_RELATION_OF = _meanings(RELATION_PHRASES)
_POSITION_OF = _meanings(POSITION_PHRASES)


def _thing_pattern(tag: str) -> str:
    return (
        rf"an? (?:(?P<size_{tag}>{_any_of(RADII)}) )?"
        rf"(?P<colour_{tag}>{_any_of(THING_COLOURS)}) (?P<shape_{tag}>{_any_of(SHAPES)})"
    )


_BACKGROUND = rf"(?: on an? (?P<background>{_any_of(BACKGROUNDS)}) background)?"
_SINGLE = re.compile(
    rf"{_thing_pattern('a')}(?: (?P<early>{_any_of(_POSITION_OF)}))?{_BACKGROUND}"
    rf"(?:, (?P<late>{_any_of(_POSITION_OF)}))?"
)
_PAIR = re.compile(
    rf"{_thing_pattern('a')} (?:and|(?P<relation>{_any_of(_RELATION_OF)})) {_thing_pattern('b')}{_BACKGROUND}"
)


def _thing_claim(found: dict[str, str | None], tag: str) -> ThingClaim:
    colour, shape = found[f"colour_{tag}"], found[f"shape_{tag}"]
    assert colour is not None
    assert shape is not None
    return ThingClaim(colour, shape, found[f"size_{tag}"])


def parse_caption(text: str) -> Claim:
    """What `text` claims; `CaptionError` if the grammar could not have written it."""
    plain = " ".join(text.lower().split()).removesuffix(".")
    if single := _SINGLE.fullmatch(plain):
        found = single.groupdict()
        if found["early"] and found["late"]:
            raise CaptionError(f"two positions in {text!r}")
        phrase = found["early"] or found["late"]
        position = _POSITION_OF[phrase] if phrase else None
        return Claim((_thing_claim(found, "a"),), found["background"], position=position)
    if pair := _PAIR.fullmatch(plain):
        found = pair.groupdict()
        relation = _RELATION_OF[found["relation"]] if found["relation"] else None
        return Claim(
            (_thing_claim(found, "a"), _thing_claim(found, "b")), found["background"], relation=relation
        )
    raise CaptionError(f"not a caption of the shapes grammar: {text!r}")
