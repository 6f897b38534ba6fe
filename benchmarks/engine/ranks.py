"""One request at a time through a rank that is a process of its own, in both modes, beside plain diffusers.

A rank computes on one thread, as diffusers does here; the engine's process does the rest on the other core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import MIXED, MODES, Sides, Stage, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Ratio, in_turn
from stage_api.spec import Mode

AIMS = {Mode.REQUEST: 1.05, Mode.STEP: 1.10}
PEER = {Mode.REQUEST: "1.12–1.16", Mode.STEP: "1.23–1.44"}


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row a mode. Ranks that wait use no core, so both engines may live while the other side is timed."""
    stages = {mode: Stage.ready(sides.folder, mode, executor="mp") for mode in MODES}
    try:
        _check(sides, stages)
        variants: dict[str, Callable[[int], object]] = {"diffusers": partial(_plain, sides)}
        for mode, stage in stages.items():
            variants[mode] = partial(_ours, stage)
        times = in_turn(variants, options.rounds(20))
    finally:
        for stage in stages.values():
            stage.engine.close()
    rows = []
    for mode in MODES:
        ratio = Ratio.of(times[mode], times["diffusers"])
        rows.append(
            Row(
                what=f"one at a time, mp, {mode} mode",
                value=times[mode].per(1)["wall_ms_median"],
                unit="ms",
                ratio=ratio.wall,
                aim=AIMS[mode],
                peer=PEER[mode],
                details={"ratio": ratio, "diffusers": times["diffusers"].per(1)},
            )
        )
    return rows


def _check(sides: Sides, stages: dict[Mode, Stage]) -> None:
    """Both modes draw what diffusers draws, to the last bit."""
    theirs = [np.asarray(image) for image in sides.diffusers.draw([MIXED[0]], [0])]
    for mode, stage in stages.items():
        check_same(f"mp, {mode} mode", [pixels(output) for output in stage.draw([MIXED[0]], [0])], theirs)


def _plain(sides: Sides, number: int) -> object:
    return sides.diffusers.draw([MIXED[number % len(MIXED)]], [number])


def _ours(stage: Stage, number: int) -> object:
    return stage.draw([MIXED[number % len(MIXED)]], [number])
