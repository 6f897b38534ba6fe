"""`omnistage generate` of the shapes model: what plain diffusers draws, bit for bit, in files with sane names."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shapes_model.checker import check_picture
from support.stage_process import (
    CHECKPOINT,
    EXAMPLE,
    PATIENCE_S,
    PROMPT_S,
    StageProcess,
    environment,
    omnistage,
)
from support.tiny_models import load_plain

pytestmark = pytest.mark.timeout(300)

PROMPTS = (
    "a large red circle in the center on a white background",
    "a small green triangle below a large yellow heart on a purple background",
)
SEED = 11


def plain_pictures() -> list[np.ndarray]:
    pipeline = load_plain(CHECKPOINT)
    return [
        np.asarray(
            pipeline(
                prompt,
                negative_prompt="",
                true_cfg_scale=3.0,
                num_inference_steps=20,
                height=64,
                width=64,
                generator=torch.Generator().manual_seed(SEED + place),
            ).images[0]
        )
        for place, prompt in enumerate(PROMPTS)
    ]


def test_generate_draws_what_plain_diffusers_draws(tmp_path: Path) -> None:
    done = omnistage("generate", "shapes", *PROMPTS, "--seed", SEED, "-o", tmp_path / "new" / "folder")
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == [
        "0001-a-large-red-circle-in-the-center-on-a-white-background.png",
        "0002-a-small-green-triangle-below-a-large-yellow-heart-on-a-purpl.png",
    ]
    lines = done.stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["seed 11", "seed 12"]
    for file, prompt, want in zip(files, PROMPTS, plain_pictures(), strict=True):
        got = np.asarray(Image.open(file))
        np.testing.assert_array_equal(got, want)
        assert check_picture(got, prompt) == check_picture(want, prompt)
    assert check_picture(np.asarray(Image.open(files[0])), PROMPTS[0]).ok


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (
            ["no-such-model"],
            65,
            "no-such-model: expected a folder, a manifest, or an embedded model (shapes, digits)",
        ),
        (["shapes", "--size", "60x64"], 2, "--size: width: expected a multiple of 8 from 8 to 256"),
        (["shapes", "--steps", "0"], 2, "--steps: expected 1..1000, got 0"),
        (["shapes", "--guidance", "-1"], 2, "--guidance: expected 0..100, got -1"),
        (["shapes", "--seed", "-1"], 2, "--seed: expected 0.."),
        (["shapes", "--n", "0"], 2, "--n: expected 1..128, got 0"),
        (["digits", "--negative-prompt", "a"], 2, "--negative-prompt: expected nothing, since DigitsModel"),
        (["digits"], 2, "PROMPT: expected at most one digit"),
        ([""], 65, "'': expected a folder, a manifest, or an embedded model (shapes, digits), got nothing"),
        (["shapes", "--dtype", "int8"], 64, "spec.engine.dtype: expected one of bfloat16, float16, float32"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(
    arguments: list[str], code: int, complaint: str, tmp_path: Path
) -> None:
    done = omnistage("generate", *arguments[:1], "a red circle", *arguments[1:], "-o", tmp_path)
    assert done.returncode == code
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("redirected", "code", "complaint"),
    [
        (">/dev/full", 1, "standard output: No space left on device"),
        (">&-", 0, ""),
        ("| true", 1, "standard output: Broken pipe"),
    ],
)
def test_a_picture_is_saved_though_nobody_can_be_told_of_it(
    redirected: str, code: int, complaint: str, tmp_path: Path
) -> None:
    """The reader of the pipe has left long before anything is drawn."""
    command = shlex.join(
        [sys.executable, "-m", "stage_runtime.cli", "generate", "digits", "7", "8", "-o", str(tmp_path)]
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} --steps 2 {redirected}"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, sorted(path.name for path in tmp_path.iterdir())) == (
        code,
        ["0001-7.png", "0002-8.png"],
    )
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert str(tmp_path) not in done.stderr


@pytest.mark.parametrize("command", ["topology", "validate"])
def test_no_command_blames_anything_else_for_an_output_that_can_not_be_written(command: str) -> None:
    manifest = shlex.quote(str(EXAMPLE))
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m stage_runtime.cli {command} {manifest} >/dev/full"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "omnistage: standard output: No space left on device\n")


@pytest.mark.parametrize("place", ["link", "link/below"])
def test_a_folder_that_can_not_be_made_is_told_before_anything_is_loaded(place: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    done = omnistage("generate", "shapes", "a red circle", "-o", tmp_path / place)
    assert done.returncode == 2
    assert "expected a folder that can be written to" in done.stderr
    assert "loading" not in done.stderr


def test_ctrl_c_ends_it_at_once_also_while_it_loads(tmp_path: Path) -> None:
    with StageProcess(
        "generate", "shapes", "a red circle", "-o", tmp_path / "out", folder=tmp_path
    ) as generate:
        generate.wait_text("loading shapes")
        generate.press_ctrl_c()
        assert generate.wait(PROMPT_S) == -signal.SIGINT
        assert "Traceback" not in generate.text
