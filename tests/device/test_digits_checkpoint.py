"""The shipped digits model is the recorded one, small, and draws the digits and colours that it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from digits_model.evaluate import Drawn, Painter, evaluate
from digits_model.reader import read_picture
from stage_runtime.pipelines.contract import Wishes

MODEL = Path(__file__).parents[2] / "models" / "digits"
CHECKPOINT = MODEL / "checkpoint"
LARGEST_SIZE = 1_500_000
RECORDED_RATE = 1.0
"""Of 160 pictures, two seeds of each digit in each colour, at 8 steps; models/digits/README.md has the table."""
MARGIN = 0.03
"""For other processors, whose rounding differs."""


def checkpoint_files() -> list[Path]:
    return sorted(path for path in CHECKPOINT.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter(CHECKPOINT)


@pytest.fixture(scope="module")
def drawn(painter: Painter) -> Sequence[Drawn]:
    return evaluate(painter, range(2), steps=8)


def test_every_file_of_the_checkpoint_has_its_recorded_digest() -> None:
    recorded = dict(reversed(line.split("  ", 1)) for line in (MODEL / "SHA256SUMS").read_text().splitlines())
    actual = {
        path.relative_to(MODEL).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in checkpoint_files()
    }
    assert actual == recorded


def test_the_checkpoint_is_at_most_a_megabyte_and_a_half() -> None:
    assert sum(path.stat().st_size for path in checkpoint_files()) <= LARGEST_SIZE


def test_every_digit_in_every_colour_is_drawn_at_the_recorded_rate(drawn: Sequence[Drawn]) -> None:
    wrong = [f"{one.colour} {one.digit} of seed {one.seed}: {one.reading}" for one in drawn if not one.ok]
    assert 1 - len(wrong) / len(drawn) >= RECORDED_RATE - MARGIN, "\n".join(wrong)


def test_no_picture_passes_for_another_digit(drawn: Sequence[Drawn]) -> None:
    assert not any(one.reading.digit not in (None, one.digit) for one in drawn)


def test_one_prompt_gives_other_handwriting_from_another_seed(painter: Painter) -> None:
    pictures = painter.draw([Wishes(prompt="a white 5", seed=seed) for seed in range(4)])
    assert len({one.tobytes() for one in pictures}) == 4
    assert {read_picture(one).digit for one in pictures} <= {5, None}


def test_what_the_prompt_leaves_out_varies_from_seed_to_seed(painter: Painter) -> None:
    free = painter.draw([Wishes(prompt="red", seed=seed, guidance_scale=1.0) for seed in range(24)])
    readings = [read_picture(one) for one in free]
    assert {reading.colour for reading in readings} == {"red"}
    assert len({reading.digit for reading in readings} - {None}) >= 5


def test_the_same_seed_gives_the_same_picture(painter: Painter) -> None:
    wish = Wishes(prompt="a cyan 2", seed=9)
    assert np.array_equal(painter.draw([wish]), painter.draw([wish]))
