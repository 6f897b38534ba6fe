"""Files of `omnistage generate`: names that any file system takes, numbered, none overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_runtime.cli import main
from stage_runtime.generate import next_number, slug


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A red circle, on top!", "a-red-circle-on-top"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "picture"),
        ("日本語", "picture"),
        ("x" * 500, "x" * 60),
        ("a" * 59 + " b", "a" * 59),
        ("nul\x00 and\nnewline", "nul-and-newline"),
        ("CON", "con"),
    ],
)
def test_a_prompt_becomes_a_safe_part_of_a_file_name(prompt: str, name: str) -> None:
    assert slug(prompt) == name


def test_numbers_go_on_where_the_folder_ends(tmp_path: Path) -> None:
    assert next_number(tmp_path) == 1
    for name in ("0009-a.png", "0010-b.jpg", "notes.txt", "x-0099.png"):
        (tmp_path / name).touch()
    assert next_number(tmp_path) == 11


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["generate", "shapes", "a", "-o", "x", "--size", "64"], "expected WIDTHxHEIGHT, as 64x64, got '64'"),
        (["generate", "shapes", "a", "-o", "x", "--size", "-1x8"], "--size"),
        (["generate", "shapes", "a"], "-o/--output"),
        (["generate", "shapes", "a", "-o", "x", "--quality", "101"], "expected 0..100, got '101'"),
        (["generate", "shapes", "a", "-o", "x", "--format", "gif"], "invalid choice: 'gif'"),
        (["run", "stage.yaml", "--port", "65536"], "expected 0..65535, got '65536'"),
        ([], "COMMAND"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
