"""One request at a time through the real engine, in both modes, beside plain diffusers.

Diffusers answers with PIL images and the engine with bytes, as their users get them; a second row adds the PIL image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import MIXED, MODES, Sides, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Ratio, in_turn
from stage_api.spec import Mode

AIM = 1.03
PEER = {Mode.REQUEST: "1.10", Mode.STEP: "1.18–1.23"}


def measure(options: Options, sides: Sides) -> list[Row]:
    """Two rows a mode, the picture as bytes and as PIL image."""
    check(options, sides)
    variants: dict[str, Callable[[int], object]] = {"diffusers": partial(_plain, sides)}
    for mode in MODES:
        variants[mode] = partial(_ours, sides, mode)
        variants[f"{mode}, PIL"] = partial(_ours_as_image, sides, mode)
    times = in_turn(variants, options.rounds(20))
    rows = []
    for name in list(variants)[1:]:
        ratio = Ratio.of(times[name], times["diffusers"])
        mode = Mode(name.partition(",")[0])
        rows.append(
            Row(
                what=f"one at a time, {mode} mode{name.removeprefix(mode)}",
                value=times[name].per(1)["wall_ms_median"],
                unit="ms",
                ratio=ratio.wall,
                by_cpu=ratio.cpu,
                aim=AIM,
                peer=PEER[mode],
                details={
                    "ratio": ratio,
                    "ours": times[name].per(1),
                    "diffusers": times["diffusers"].per(1),
                },
            )
        )
    return rows


def check(options: Options, sides: Sides) -> None:
    """Both modes draw what diffusers draws, to the last bit."""
    for seed, prompt in enumerate(MIXED[: options.rounds(len(MIXED))]):
        theirs = [np.asarray(image) for image in sides.diffusers.draw([prompt], [seed])]
        for mode, stage in sides.stages.items():
            ours = [pixels(output) for output in stage.draw([prompt], [seed])]
            check_same(f"one at a time, {mode} mode", ours, theirs)


def _plain(sides: Sides, number: int) -> Any:
    return sides.diffusers.draw([MIXED[number % len(MIXED)]], [number])


def _ours(sides: Sides, mode: Mode, number: int) -> Any:
    return sides.stages[mode].draw([MIXED[number % len(MIXED)]], [number])


def _ours_as_image(sides: Sides, mode: Mode, number: int) -> Any:
    return [Image.fromarray(pixels(output)) for output in _ours(sides, mode, number)]
