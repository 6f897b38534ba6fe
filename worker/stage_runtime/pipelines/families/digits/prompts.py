"""What may be asked of the digits model: a digit, a colour, both or neither, in a few plain words. No torch."""

from __future__ import annotations

from typing import Final, NamedTuple

from stage_runtime.core.errors import InvalidRequest

NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COLOURS: Final = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")
FILLERS: Final = frozenset({"a", "an", "the", "digit", "number"})
ANY_DIGIT: Final = len(NUMBERS)
"""The class of a picture whose digit nobody chose."""
ANY_COLOUR: Final = len(COLOURS)

_DIGIT_OF: Final = {word: i for i, word in enumerate(NUMBERS)} | {str(i): i for i in range(len(NUMBERS))}
_COLOUR_OF: Final = {word: i for i, word in enumerate(COLOURS)}


class Asked(NamedTuple):
    """The two classes that the network is told."""

    digit: int
    """0..9, or ANY_DIGIT."""
    colour: int
    """Place in COLOURS, or ANY_COLOUR."""


NOTHING: Final = Asked(ANY_DIGIT, ANY_COLOUR)
"""What the second pass of classifier-free guidance is told."""


def read(prompt: str) -> Asked:
    """`a red 7`, `the number seven`, `blue`: what is left out is the model's choice.

    Raises: InvalidRequest for a word that the model doesn't know, or for two digits or colours.
    """
    digits, colours = [], []
    for word in prompt.lower().replace(",", " ").split():
        if word in _DIGIT_OF:
            digits.append(_DIGIT_OF[word])
        elif word in _COLOUR_OF:
            colours.append(_COLOUR_OF[word])
        elif word not in FILLERS:
            raise _refused("a word that it doesn't know")
    if len(digits) > 1 or len(colours) > 1:
        raise _refused(f"{len(digits)} digits and {len(colours)} colours")
    return Asked((*digits, ANY_DIGIT)[0], (*colours, ANY_COLOUR)[0])


def _refused(got: str) -> InvalidRequest:
    expected = f"at most one digit (0..9, or in letters) and one colour ({', '.join(COLOURS)})"
    return InvalidRequest(f"prompt: expected {expected}, got {got}", "prompt")
