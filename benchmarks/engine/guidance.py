"""A wave of eight with guidance: two ranks that share its two passes, beside one rank that makes both.

Both stages are ranks of their own, with one thread each, so that only the second rank is between them. By CPU time
there is nothing to see: two ranks do the same work in less time. It takes two quiet cores.
"""

from __future__ import annotations

from functools import partial

from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import EQUAL, MODES, SLOTS, Sides, Stage, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Ratio, in_turn
from stage_api.spec import Mode

AIM = 1.4
PEER = "1.28–1.36"
WITHIN = 1
"""Of 255: what another batch size alone changes."""


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row a mode: how many times faster two ranks are."""
    return [row for mode in MODES for row in _measured(mode, options, sides)]


def _measured(mode: Mode, options: Options, sides: Sides) -> list[Row]:
    one = Stage.ready(sides.folder, mode, executor="mp")
    two = Stage.ready(sides.folder, mode, executor="mp", cfg=2)
    try:
        seeds = range(SLOTS)
        want = [pixels(output) for output in one.draw(EQUAL, seeds)]
        check_same(
            f"cfg 2, {mode} mode", [pixels(output) for output in two.draw(EQUAL, seeds)], want, within=WITHIN
        )
        variants = {"one": partial(_draw, one), "two": partial(_draw, two)}
        times = in_turn(variants, options.rounds(9))
    finally:
        two.engine.close()
        one.engine.close()
    return [
        Row(
            what=f"cfg 2, wave of {SLOTS}, {mode} mode: times faster",
            value=times["two"].per(SLOTS)["wall_ms_median"],
            unit="ms/image",
            ratio=Ratio.of(times["one"], times["two"]).wall,
            aim=AIM,
            at_least=True,
            peer=PEER,
            details={"one": times["one"].per(SLOTS), "two": times["two"].per(SLOTS)},
        )
    ]


def _draw(stage: Stage, number: int) -> object:
    return stage.draw(EQUAL, range(number, number + SLOTS))
