"""How long `Engine.close()` takes: at rest, and with every slot taken."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.engine.sides import EQUAL, SLOTS, Sides, Stage
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Times
from stage_api.spec import Mode
from stage_runtime.core.errors import StageError

AIM_S = 0.5
PEER = "1.1–1.2 s"
ENDLESS_STEPS = 200


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row for each."""
    rows = []
    for what, count in (("at rest", 0), (f"with {SLOTS} running", SLOTS)):
        times = Times()
        for _ in range(options.rounds(3)):
            _close(sides.folder, count, times)
        rows.append(
            Row(
                what=f"close, {what}",
                value=median(times.wall),
                unit="s",
                by_cpu=median(times.cpu),
                aim=AIM_S,
                peer=PEER if not count else "",
                details={"wall_s": times.wall, "cpu_s": times.cpu},
            )
        )
    return rows


def _close(folder: Path, running: int, times: Times) -> None:
    """Close an engine that is ready, with that many requests in mid-run."""
    stage = Stage.ready(folder, Mode.STEP)
    streams = stage.ask(EQUAL[:running], range(running), ENDLESS_STEPS)
    for stream in streams:
        next(iter(stream))  # it has moved
    times.take(stage.engine.close)
    for stream in streams:
        try:
            stream.result(timeout_s=0)
        except StageError:
            continue
        raise RuntimeError("a request ended well although its engine was closed")
