"""Grades a picture against a prompt: does it show exactly what the text states?

verdict = check_picture(picture, "a small red circle left of a large blue heart on a white background")
assert verdict.ok, verdict.explain()
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from shapes_model.captions import CaptionError, Claim, ThingClaim, parse_caption
from shapes_model.reader import Reading, SeenThing, read_picture

__all__ = ["ATTRIBUTES", "CaptionError", "Verdict", "check_picture", "judge", "parse_prompt"]

ATTRIBUTES = ("colour", "shape", "size", "place", "background", "count")
FIRST_THIRD, LAST_THIRD = 25, 39
"""Below the first a single thing is left (or at the top), beyond the last right (or at the bottom)."""

parse_prompt = parse_caption


@dataclass(frozen=True)
class Verdict:
    """One boolean an attribute; what the text leaves open is true."""

    claim: Claim
    reading: Reading
    colour: bool
    shape: bool
    size: bool
    place: bool
    background: bool
    count: bool

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(name for name in ATTRIBUTES if not getattr(self, name))

    def explain(self) -> str:
        """One line: what differs, what was asked for and what was seen."""
        if self.ok:
            return "as asked"
        return f"wrong {', '.join(self.wrong)}: asked for {_describe_claim(self.claim)}; saw {_describe(self.reading)}"


def _describe_claim(claim: Claim) -> str:
    things = [" ".join(filter(None, (thing.size, thing.colour, thing.shape))) for thing in claim.things]
    joint = f" {claim.relation} " if claim.relation else " and "
    position = f" ({claim.position})" if claim.position else ""
    return f"{joint.join(things)}{position} on {claim.background or 'any background'}"


def _describe(reading: Reading) -> str:
    things = [
        f"{seen.size} {seen.colour} {seen.shape or 'blob'} at ({seen.x:.0f}, {seen.y:.0f}) overlap {seen.overlap:.2f}"
        for seen in reading.things
    ]
    return f"{' and '.join(things) or 'nothing'} on {reading.background}"


@dataclass(frozen=True)
class _Match:
    """The claimed things beside the seen ones taken for them (None: not there)."""

    seen: tuple[SeenThing | None, ...]
    colour: int
    shape: int
    size: int

    @property
    def score(self) -> float:
        return self.colour + self.shape + 0.5 * self.size


def _match(claims: tuple[ThingClaim, ...], chosen: tuple[SeenThing | None, ...]) -> _Match:
    pairs = [(claim, seen) for claim, seen in zip(claims, chosen, strict=True) if seen is not None]
    return _Match(
        seen=chosen,
        colour=sum(seen.colour == claim.colour for claim, seen in pairs),
        shape=sum(seen.shape == claim.shape for claim, seen in pairs),
        size=sum(claim.size in (None, seen.size) for claim, seen in pairs),
    )


def _best_match(claims: tuple[ThingClaim, ...], things: tuple[SeenThing, ...]) -> _Match:
    pool = things + (None,) * max(0, len(claims) - len(things))
    return max(
        (_match(claims, chosen) for chosen in itertools.permutations(pool, len(claims))),
        key=lambda match: match.score,
    )


def position_of(x: float, y: float) -> str:
    """The name of the ninth of the picture that the point (in 64ths) lies in."""
    row = "top" if y < FIRST_THIRD else "bottom" if y > LAST_THIRD else ""
    column = "left" if x < FIRST_THIRD else "right" if x > LAST_THIRD else ""
    return f"{row} {column}".strip() or "center"


def _related(relation: str, first: SeenThing, second: SeenThing) -> bool:
    """Does the first lie that way of the second, clearly more than it is off across?"""
    dx, dy = second.x - first.x, second.y - first.y
    along, across = {"left": (dx, dy), "right": (-dx, dy), "above": (dy, dx), "below": (-dy, dx)}[relation]
    return along > 0 and along > abs(across)


def _placed(claim: Claim, seen: tuple[SeenThing | None, ...]) -> bool:
    if claim.position is None and claim.relation is None:
        return True
    if any(thing is None for thing in seen):
        return False
    there = [thing for thing in seen if thing is not None]
    if claim.position is not None:
        return position_of(there[0].x, there[0].y) == claim.position
    assert claim.relation is not None
    return _related(claim.relation, there[0], there[1])


def judge(reading: Reading, claim: Claim) -> Verdict:
    """Compare what was read off a picture with what a caption claims."""
    wanted = len(claim.things)
    match = _best_match(claim.things, reading.things)
    return Verdict(
        claim=claim,
        reading=reading,
        colour=match.colour == wanted,
        shape=match.shape == wanted,
        size=match.size == wanted,
        place=_placed(claim, match.seen),
        background=claim.background in (None, reading.background),
        count=len(reading.things) == wanted,
    )


def check_picture(picture: np.ndarray, prompt: str) -> Verdict:
    """uint8 [side, side, 3] and the prompt it was drawn for; `CaptionError` if the prompt is outside the grammar."""
    claim = parse_prompt(prompt)
    return judge(read_picture(picture), claim)
