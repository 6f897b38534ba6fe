"""What the images are built from: nothing of the other program, only pinned packages, nobody's root."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {"operator": "stage_operator", "worker": "stage_runtime"}
OTHER = {"operator": "worker/", "worker": "operator/"}
PIN = re.compile(r"[a-z0-9.-]+==\S+")

both = pytest.mark.parametrize("part", PARTS)


def steps(part: str) -> list[list[str]]:
    """The instructions of a Dockerfile, each as words."""
    text = (ROOT / f"Dockerfile.{part}").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [line.split() for line in lines.splitlines() if line.strip()]


def copied(part: str) -> list[str]:
    """What is taken from the checkout."""
    return [
        source
        for word, *arguments in steps(part)
        if word == "COPY" and not arguments[0].startswith("--from")
        for source in arguments[:-1]
    ]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@both
def test_an_image_takes_nothing_of_the_other_program_and_no_tests(part: str) -> None:
    taken = copied(part)
    assert f"{'worker' if part == 'worker' else 'operator'}/{PARTS[part]}" in taken
    assert not [source for source in taken if source.startswith((OTHER[part], "tests", ".", "/"))]


@both
def test_what_is_copied_is_there(part: str) -> None:
    assert [source for source in copied(part) if not (ROOT / source).exists()] == []


@both
def test_own_code_comes_last(part: str) -> None:
    *_, copy, check = [step for step in steps(part) if step[0] in ("COPY", "RUN")]
    assert copy == ["COPY", "--from=code", "/code", "/opt/venv"]
    assert f"must not be in the {part}" in " ".join(check)


@both
def test_the_base_is_a_public_image_that_can_be_replaced(part: str) -> None:
    found = steps(part)
    assert found[0] == ["ARG", "BASE=docker.io/library/python:3.11-slim-bookworm"]
    assert {step[1] for step in found if step[0] == "FROM"} == {"${BASE}", "dependencies"}


@both
def test_it_is_run_by_a_number_that_is_not_root_s(part: str) -> None:
    (user,) = [step[1] for step in steps(part) if step[0] == "USER"]
    assert user.partition(":")[0].isdigit()
    assert int(user.partition(":")[0]) > 0


@both
def test_it_is_started_without_a_shell_so_that_signals_reach_it(part: str) -> None:
    (entry,) = [" ".join(step[1:]) for step in steps(part) if step[0] == "ENTRYPOINT"]
    assert shlex.split(entry.strip("[]").replace(",", " ")) == ["python", "-m", PARTS[part]]


@both
def test_every_package_is_pinned(part: str) -> None:
    lines = (ROOT / "constraints" / f"{part}.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    together = pins("dev")
    assert {name: together.get(name) for name in pins(part)} == pins(part)


def test_the_operator_s_packages_are_few() -> None:
    heavy = {"torch", "numpy", "diffusers", "transformers", "fastapi", "pillow", "uvicorn"}
    assert not heavy & set(pins("operator"))
