"""The reader accepts written digits in any pose, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from digits_model.glyphs import RGB, SIDE, coverage, picture, random_pose
from digits_model.reader import LEAST_LIKENESS, read_picture

COLOURS = tuple(RGB)


def written(count: int, seed: int = 7) -> Iterator[tuple[int, str, np.ndarray]]:
    """Digit, colour, picture, in the poses of the training."""
    chance = np.random.default_rng(seed)
    for place in range(count):
        digit, colour = place % 10, int(chance.integers(len(COLOURS)))
        drawn = picture(coverage(digit, random_pose(chance)), colour)
        yield digit, COLOURS[colour], (drawn * 255).round().astype(np.uint8)


def test_every_written_digit_is_read() -> None:
    readings = [(read_picture(drawn), digit, colour) for digit, colour, drawn in written(400)]
    assert all(reading.shows(digit, colour) for reading, digit, colour in readings)


def test_no_written_digit_passes_for_another_digit_or_colour() -> None:
    for digit, colour, drawn in written(100):
        reading = read_picture(drawn)
        assert not any(reading.shows(n, colour) for n in range(10) if n != digit)
        assert not any(reading.shows(digit, name) for name in COLOURS if name != colour)


def test_a_little_noise_does_no_harm() -> None:
    chance = np.random.default_rng(3)
    noisy = [
        (digit, colour, np.clip(drawn + chance.normal(0, 8, drawn.shape), 0, 255).astype(np.uint8))
        for digit, colour, drawn in written(100)
    ]
    assert sum(read_picture(drawn).shows(digit, colour) for digit, colour, drawn in noisy) >= 99


def test_neither_darkness_nor_noise_nor_a_filled_square_shows_a_digit() -> None:
    chance = np.random.default_rng(1)
    square = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    square[6:26, 8:24] = (225, 40, 40)
    nothing = [
        np.zeros((SIDE, SIDE, 3), dtype=np.uint8),
        square,
        *(chance.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8) for _ in range(20)),
    ]
    assert {read_picture(drawn).digit for drawn in nothing} == {None}


def test_half_a_digit_shows_none_of_which_it_is() -> None:
    for digit, _, drawn in written(20):
        drawn[:, : SIDE // 2] = 0
        reading = read_picture(drawn)
        assert reading.digit != digit or reading.likeness < LEAST_LIKENESS or digit == 1


def test_a_picture_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a picture"):
        read_picture(np.zeros((64, 64, 3), dtype=np.uint8))
