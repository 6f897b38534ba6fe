"""Draws every digit in every colour from many seeds, and counts what the reader accepts.

PYTHONPATH=models/digits python -m digits_model.evaluate models/digits/checkpoint --seeds 10 --sheet sheet.png
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from digits_model.glyphs import RGB, STROKES
from digits_model.reader import Reading, read_picture
from stage_runtime.core.request import Request
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.step_model import Newcomer


@dataclass(frozen=True)
class Drawn:
    """One picture (uint8 [32, 32, 3]), what was asked, and what is seen."""

    digit: int
    colour: str
    seed: int
    picture: np.ndarray
    reading: Reading

    @property
    def ok(self) -> bool:
        """True when it shows what was asked."""
        return self.reading.shows(self.digit, self.colour)


class Painter:
    """The checkpoint's model, driven by its four methods."""

    def __init__(self, checkpoint: Path, dtype: torch.dtype = torch.float32) -> None:
        self.resolved = resolve(checkpoint)
        self.model = load(self.resolved, dtype=dtype, device=torch.device("cpu"))

    @torch.no_grad()
    def draw(self, wishes: Sequence[Wishes]) -> np.ndarray:
        """One picture a wish, all of equal steps, in one batch: uint8 [n, 32, 32, 3]."""
        requests = [
            request for wish in wishes for request in build_requests(self.resolved, wish, request_id="x")
        ]
        states = self.model.prepare_encode([self._newcomer(request) for request in requests])
        while states[0].step < states[0].steps:
            states = self.model.step_scheduler(states, self.model.denoise_step(states))
        pictures = torch.cat([result.images for result in self.model.post_decode(states)])
        return np.asarray((pictures * 255).round().to(torch.uint8).movedim(1, -1).numpy())

    @staticmethod
    def _newcomer(request: Request) -> Newcomer:
        return Newcomer(request, torch.Generator().manual_seed(request.seed))


def evaluate(painter: Painter, seeds: Sequence[int], *, steps: int | None = None) -> list[Drawn]:
    """Every digit in every colour from every seed."""
    drawn = []
    for seed in seeds:
        asked = list(itertools.product(range(len(STROKES)), RGB))
        wishes = [
            Wishes(prompt=f"a {c} {d}", seed=seed * len(asked) + i, num_inference_steps=steps)
            for i, (d, c) in enumerate(asked)
        ]
        for (digit, colour), wish, picture in zip(asked, wishes, painter.draw(wishes), strict=True):
            drawn.append(Drawn(digit, colour, wish.seed or 0, picture, read_picture(picture)))
    return drawn


def report(drawn: Sequence[Drawn]) -> str:
    """Percent accepted, together and by digit."""

    def percent(some: Sequence[bool]) -> str:
        return f"{100 * sum(some) / max(1, len(some)):.1f}"

    lines = [f"{len(drawn)} pictures: {percent([one.ok for one in drawn])} % show digit and colour"]
    lines.append(
        f"digit {percent([d.reading.digit == d.digit for d in drawn])} %, "
        f"colour {percent([d.reading.colour == d.colour for d in drawn])} %, "
        f"against the next digit {percent([d.reading.digit == (d.digit + 1) % 10 for d in drawn])} %, "
        f"mean likeness {np.mean([d.reading.likeness for d in drawn]):.3f}"
    )
    lines += [f"  {n}: {percent([one.ok for one in drawn if one.digit == n])} %" for n in range(len(STROKES))]
    return "\n".join(lines)


def sheet(drawn: Sequence[Drawn], path: Path, columns: int = 20) -> None:
    """The first pictures side by side, each at three times its size."""
    rows = [drawn[i : i + columns] for i in range(0, len(drawn) - columns + 1, columns)]
    whole = np.concatenate([np.concatenate([one.picture for one in row], axis=1) for row in rows])
    Image.fromarray(whole.repeat(3, axis=0).repeat(3, axis=1)).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seeds", type=int, default=10, help="of each digit in each colour")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    painter = Painter(options.checkpoint, getattr(torch, options.dtype))
    drawn = evaluate(painter, range(options.seeds), steps=options.steps)
    print(report(drawn))
    if options.sheet is not None:
        sheet(drawn, options.sheet)


if __name__ == "__main__":
    main()
