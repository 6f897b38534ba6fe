"""Eight requests at once, with eight slots, beside one diffusers call for a batch of eight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import EQUAL, MIXED, MODES, SLOTS, Sides, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Ratio, in_turn
from stage_api.spec import Mode

AIM = 1.0
PEER = {Mode.REQUEST: "0.96–0.97", Mode.STEP: "1.60–1.69"}
WITHIN = 1
"""Of 255: what another batch size alone changes."""


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row for each mode and kind of prompts."""
    rows = []
    for kind, prompts in (("equal", EQUAL), ("mixed", MIXED)):
        differences = check(kind, prompts, sides)
        times = in_turn(_variants(prompts, sides), options.rounds(7))
        for mode in MODES:
            ratio = Ratio.of(times[mode], times["diffusers"])
            rows.append(
                Row(
                    what=f"burst of {SLOTS}, {kind} prompts, {mode} mode",
                    value=times[mode].per(SLOTS)["wall_ms_median"],
                    unit="ms/image",
                    ratio=ratio.wall,
                    by_cpu=ratio.cpu,
                    aim=AIM,
                    peer=PEER[mode] if kind == "equal" else "",
                    details={
                        "ratio": ratio,
                        "ours": times[mode].per(SLOTS),
                        "diffusers": times["diffusers"].per(SLOTS),
                        "largest_difference_of_255": differences[mode],
                    },
                )
            )
    return rows


def check(kind: str, prompts: Sequence[str], sides: Sides) -> dict[Mode, int]:
    """Both modes draw what the batch draws, but for what batching changes."""
    seeds = range(len(prompts))
    theirs = [np.asarray(image) for image in sides.diffusers.draw(prompts, seeds)]
    return {
        mode: check_same(
            f"burst, {kind} prompts, {mode} mode",
            [pixels(output) for output in stage.draw(prompts, seeds)],
            theirs,
            within=WITHIN,
        )
        for mode, stage in sides.stages.items()
    }


def _variants(prompts: Sequence[str], sides: Sides) -> dict[str, Callable[[int], object]]:
    def seeds(number: int) -> range:
        return range(number, number + len(prompts))

    return {
        "diffusers": lambda number: sides.diffusers.draw(prompts, seeds(number)),
        Mode.REQUEST: lambda number: sides.stages[Mode.REQUEST].draw(prompts, seeds(number)),
        Mode.STEP: lambda number: sides.stages[Mode.STEP].draw(prompts, seeds(number)),
    }
