"""Draws held-out prompts with a saved pipeline and counts what the checker accepts.

Prompt i draws its noise from seed i, so that any two runs can be compared picture by picture.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shapes_model.captions import full_caption
from shapes_model.checker import ATTRIBUTES, Verdict, check_picture
from shapes_model.scenes import PICTURE_SIZE, SHAPES, sample_placed

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL import Image


@dataclass(frozen=True)
class Report:
    """One verdict a prompt; and the control: whether each picture passes for the next prompt, if that differs."""

    verdicts: tuple[Verdict, ...]
    control: tuple[bool, ...]

    def accepted(self, things: int | None = None, shape: str | None = None) -> list[bool]:
        """Whether each prompt with that many things, containing that shape, was drawn as asked."""
        return [
            verdict.ok
            for verdict in self.verdicts
            if things in (None, len(verdict.claim.things))
            and (shape is None or shape in [thing.shape for thing in verdict.claim.things])
        ]

    @property
    def rate(self) -> float:
        """The share of prompts drawn exactly as asked, 0 to 1."""
        return float(np.mean(self.accepted()))

    def columns(self) -> dict[str, str]:
        """Percentages, for a table."""
        columns = {"all": self.accepted(), "one": self.accepted(things=1), "two": self.accepted(things=2)}
        columns |= {name: [getattr(verdict, name) for verdict in self.verdicts] for name in ATTRIBUTES}
        columns |= {shape: self.accepted(shape=shape) for shape in SHAPES}
        columns["control"] = list(self.control)
        return {name: _percent(values) for name, values in columns.items()}

    def line(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.columns().items())


def _percent(values: Sequence[bool]) -> str:
    return f"{100 * np.mean(values):.1f}" if values else "-"


@dataclass(frozen=True)
class Exam:
    prompts: tuple[str, ...]

    @classmethod
    def held_out(cls, count: int, seed: int) -> Exam:
        """Full captions of scenes that training never saw."""
        chance = random.Random(seed)
        return cls(tuple(full_caption(sample_placed(chance, held_out=True).scene) for _ in range(count)))

    def grade(self, pictures: Sequence[np.ndarray]) -> Report:
        next_prompts = self.prompts[1:] + self.prompts[:1]
        return Report(
            tuple(check_picture(p, prompt) for p, prompt in zip(pictures, self.prompts, strict=True)),
            tuple(
                check_picture(p, other).ok
                for p, own, other in zip(pictures, self.prompts, next_prompts, strict=True)
                if own != other
            ),
        )


def draw(
    pipeline: DiffusionPipeline, prompts: Sequence[str], *, steps: int, guidance: float, batch: int
) -> list[np.ndarray]:
    """One uint8 [64, 64, 3] a prompt. Guidance needs the (empty) negative prompt, or diffusers leaves it off."""
    import torch

    pictures: list[np.ndarray] = []
    for start in range(0, len(prompts), batch):
        part = list(prompts[start : start + batch])
        drawn = pipeline(
            part,
            negative_prompt=[""] * len(part),
            true_cfg_scale=guidance,
            num_inference_steps=steps,
            height=PICTURE_SIZE,
            width=PICTURE_SIZE,
            generator=[torch.Generator().manual_seed(start + i) for i in range(len(part))],
            output_type="np",
        ).images
        pictures += list((drawn * 255).round().astype(np.uint8))
    return pictures


def load_pipeline(checkpoint: Path, dtype: str = "bfloat16") -> DiffusionPipeline:
    """Plain diffusers, one thread, no progress bar."""
    import diffusers
    import torch
    import transformers

    torch.set_num_threads(1)
    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
        library.utils.logging.set_verbosity_error()
    pipeline = diffusers.DiffusionPipeline.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def contact_sheet(pictures: Sequence[np.ndarray], columns: int = 8, scale: int = 2) -> Image.Image:
    """The pictures side by side, as one PIL image."""
    from PIL import Image

    rows = [
        np.concatenate(pictures[i : i + columns], 1)
        for i in range(0, len(pictures) // columns * columns, columns)
    ]
    return Image.fromarray(np.concatenate(rows).repeat(scale, 0).repeat(scale, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--failures", action="store_true", help="explain every rejected picture")
    parser.add_argument("--sheet", type=Path, help="write the first 48 pictures as one PNG")
    options = parser.parse_args()
    pipeline = load_pipeline(options.checkpoint, options.dtype)
    exam = Exam.held_out(options.count, options.seed)
    start = time.process_time()
    pictures = draw(pipeline, exam.prompts, steps=options.steps, guidance=options.guidance, batch=50)
    spent = (time.process_time() - start) / options.count
    report = exam.grade(pictures)
    print(
        f"{options.count} prompts, {options.steps} steps, guidance {options.guidance:g}, {spent * 1e3:.0f} cpu ms each"
    )
    for name, value in report.columns().items():
        print(f"  {name:<10} {value:>5}")
    if options.failures:
        for index, verdict in enumerate(report.verdicts):
            if not verdict.ok:
                print(f"  {index}: {verdict.explain()}")
    if options.sheet:
        contact_sheet(pictures[:48]).save(options.sheet)


if __name__ == "__main__":
    main()
