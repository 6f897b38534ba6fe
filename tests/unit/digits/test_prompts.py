"""A prompt is a digit and a colour in plain words; what the model doesn't know is refused, never passed over."""

from __future__ import annotations

import pytest

from digits_model.glyphs import RGB
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.pipelines.families.digits.prompts import (
    ANY_COLOUR,
    ANY_DIGIT,
    COLOURS,
    NOTHING,
    NUMBERS,
    read,
)


@pytest.mark.parametrize(
    ("prompt", "digit", "colour"),
    [
        ("a red 7", 7, "red"),
        ("Seven, RED", 7, "red"),
        ("the number zero", 0, None),
        ("blue", None, "blue"),
        ("a white digit", None, "white"),
        ("", None, None),
    ],
)
def test_what_is_left_out_is_the_models_choice(prompt: str, digit: int | None, colour: str | None) -> None:
    asked = read(prompt)
    assert asked.digit == (ANY_DIGIT if digit is None else digit)
    assert asked.colour == (ANY_COLOUR if colour is None else COLOURS.index(colour))


def test_each_digit_may_be_written_out() -> None:
    assert (
        [read(word).digit for word in NUMBERS] == [read(str(n)).digit for n in range(10)] == list(range(10))
    )


def test_nothing_asked_for_is_what_guidance_is_away_from() -> None:
    assert read("") == NOTHING


@pytest.mark.parametrize("prompt", ["a red circle", "7 8", "red and blue", "a red blue 7", "10", "-1", "½"])
def test_other_words_and_too_many_are_the_clients_fault(prompt: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(prompt)
    assert refused.value.field == "prompt"
    assert prompt not in str(refused.value)


def test_the_model_is_told_the_colours_that_it_was_trained_on_in_their_order() -> None:
    assert tuple(RGB) == COLOURS
