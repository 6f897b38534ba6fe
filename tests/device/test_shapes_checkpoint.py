"""The shipped checkpoint is the recorded one, small, and draws what it is asked for in plain diffusers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shapes_model.evaluate import Exam, Report, draw, load_pipeline

MODEL = Path(__file__).parents[2] / "models" / "shapes"
CHECKPOINT = MODEL / "checkpoint"
LARGEST_SIZE = 10_000_000
RECORDED_RATE = 0.99
"""Of the 100 prompts below, in bfloat16; models/shapes/README.md has the table."""
MARGIN = 0.03
"""For other processors, whose rounding differs."""


def checkpoint_files() -> list[Path]:
    return sorted(path for path in CHECKPOINT.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def report() -> Report:
    exam = Exam.held_out(100, seed=1234)
    pictures = draw(load_pipeline(CHECKPOINT), exam.prompts, steps=20, guidance=3.0, batch=50)
    return exam.grade(pictures)


def test_every_file_of_the_checkpoint_has_its_recorded_digest() -> None:
    recorded = dict(reversed(line.split("  ", 1)) for line in (MODEL / "SHA256SUMS").read_text().splitlines())
    actual = {
        path.relative_to(MODEL).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in checkpoint_files()
    }
    assert actual == recorded


def test_the_checkpoint_is_at_most_ten_megabytes() -> None:
    assert sum(path.stat().st_size for path in checkpoint_files()) <= LARGEST_SIZE


def test_no_configuration_says_where_it_was_trained() -> None:
    configs = [path for path in checkpoint_files() if path.suffix == ".json"]
    assert not [path for path in configs if "_name_or_path" in path.read_text()]


def test_plain_diffusers_draws_held_out_prompts_at_the_recorded_rate(report: Report) -> None:
    refused = [verdict.explain() for verdict in report.verdicts if not verdict.ok]
    assert report.rate >= RECORDED_RATE - MARGIN, "\n".join(refused)


def test_no_drawn_picture_passes_for_the_next_prompt(report: Report) -> None:
    assert not any(report.control)
