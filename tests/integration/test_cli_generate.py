"""`omnistage generate` of the shapes model: what plain diffusers draws, bit for bit, in files with sane names."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shapes_model.checker import check_picture
from support.stage_process import CHECKPOINT, PROMPT_S, StageProcess, omnistage
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
        (["shapes", "--size", "60x64"], 2, "width: expected a multiple of 8 from 8 to 256"),
        (["shapes", "--steps", "0"], 2, "num_inference_steps: expected 1..1000, got 0"),
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


def test_ctrl_c_ends_it_at_once_also_while_it_loads(tmp_path: Path) -> None:
    with StageProcess(
        "generate", "shapes", "a red circle", "-o", tmp_path / "out", folder=tmp_path
    ) as generate:
        generate.wait_text("loading shapes")
        generate.press_ctrl_c()
        assert generate.wait(PROMPT_S) == -signal.SIGINT
        assert "Traceback" not in generate.text
