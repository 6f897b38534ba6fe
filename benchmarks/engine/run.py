"""Measure the stage beside plain diffusers, in one run, and print one table. `make bench` runs it.

Pictures are compared first: a wrong one ends the run with 1. Slow ones don't.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine, report
from benchmarks.options import Options

if TYPE_CHECKING:
    from benchmarks.engine.sides import Sides

ITEMS = {
    "alone": ("alone", "one request at a time"),
    "burst": ("burst", "eight at once beside one batch of eight"),
    "arrivals": ("arrivals", "staggered arrivals beside first come, first served"),
    "hub": ("hub", "what the hub adds to a call"),
    "scheduler": ("waiting", "a long line, and waves of mixed shapes"),
    "close": ("closing", "how fast an engine closes"),
    "start": ("start", "import, load and probe"),
    "ranks": ("ranks", "one request at a time through a rank of its own"),
    "cfg": ("guidance", "guidance on two ranks beside one"),
    "failing": ("failing", "a rank is killed; ranks start, idle and close"),
    "control": ("calling", "a control call to two ranks beside raw pyzmq"),
    "handover": ("handover", "large results handed over beside a plain copy"),
    "served": ("served", "a served stage: ready, idle, stopped"),
}
"""What can be asked for: its module, with `measure(options, sides) -> rows`, and what it is about."""

OF_A_MODEL = ("alone", "burst", "arrivals", "hub")
"""What depends on the model most: measured when another model is asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    asked = _parse(arguments)
    from benchmarks.engine import models
    from benchmarks.engine.pictures import WrongPicture
    from benchmarks.engine.sides import Sides, settings

    about = {"machine": machine.describe(), "settings": settings(asked.model), "quick": asked.quick}
    for name, facts in list(about.items())[:2]:
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in dict(facts).items()))
    rows: list[report.Row] = []
    try:
        with models.folder(asked.model) as folder, closing(Sides(folder)) as sides:
            for name in asked.only:
                rows += _measured(name, Options(quick=asked.quick), sides)
    except WrongPicture as wrong:
        print(f"wrong picture: {wrong}", file=sys.stderr)
        return 1
    finally:
        if rows:  # what was measured before something broke, too
            print(f"\n{report.table(rows, verdicts=not asked.quick)}\n\n{_about_load(rows)}")
        if asked.json is not None:
            report.write_json(asked.json, rows, **about)
    if asked.quick:
        print("a quick run shows that everything works; its times say nothing")
    return 0


def _measured(name: str, options: Options, sides: Sides) -> list[report.Row]:
    """One item's rows, with the load while it was measured. Raises: WrongPicture."""
    module, what = ITEMS[name]
    print(f"… {name}: {what}", file=sys.stderr, flush=True)
    watch = machine.LoadWatch()
    rows: list[report.Row] = importlib.import_module(f"benchmarks.engine.{module}").measure(options, sides)
    load = watch.so_far()
    for row in rows:
        row.load = load
    return rows


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, no verdict on times")
    parser.add_argument("--only", metavar="NAMES", type=_names, help=f"some of {', '.join(ITEMS)}")
    parser.add_argument(
        "--model",
        choices=("shapes", "tiny"),
        default="shapes",
        help="tiny: random weights, so small that the work around the denoiser shows",
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write everything there, too")
    asked = parser.parse_args(arguments)
    asked.only = asked.only or list(ITEMS if asked.model == "shapes" else OF_A_MODEL)
    return asked


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in ITEMS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(ITEMS)}")
    return names


def _about_load(rows: Sequence[report.Row]) -> str:
    """Who else computed meanwhile."""
    loads = [row.load for row in rows if row.load is not None]
    if not loads:
        return ""
    most = max(load.others_cores for load in loads)
    first = " ".join(f"{one:.2f}" for one in loads[0].average)
    text = f"load average at the beginning {first}; other processes kept up to {most:.2f} cores busy"
    if any(load.busy for load in loads):
        text += "\nTHE MACHINE WAS BUSY: trust what is by CPU time, and exact counts; nothing else"
    return text
