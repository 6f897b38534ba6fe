"""From nothing to a loaded and probed model, in a process of its own each time: import, load, probe, warm-up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.engine.sides import Sides, stage_config
from benchmarks.machine import assert_one_thread
from benchmarks.options import Options
from benchmarks.report import Row
from stage_api.config import StageConfig
from stage_api.spec import Mode
from stage_runtime.engine.engine import Engine
from stage_runtime.pipelines.contract import ResolvedModel

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]

PEER = {
    "import": "7.6–8.5 s CPU",
    "load, probe, warm-up": "3.9–4.2 s",
}


def measure(options: Options, sides: Sides) -> list[Row]:
    """Report only."""
    runs = [_start(sides.folder) for _ in range(options.rounds(3))]
    rows = []
    for what in runs[0]:
        wall, cpu = (median(run[what][place] for run in runs) for place in (0, 1))
        rows.append(
            Row(
                what=f"start: {what}",
                value=wall,
                unit="s",
                by_cpu=cpu,
                peer=PEER.get(what, ""),
                details={"wall_and_cpu_s": [run[what] for run in runs]},
            )
        )
    return rows


def _start(folder: Path) -> dict[str, list[float]]:
    """Wall and CPU seconds of each part."""
    command = [sys.executable, "-m", "benchmarks.engine.start", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    parts: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return parts


def main() -> None:
    """Start once on the model in the folder given, and print what it took."""
    config = stage_config(Path(sys.argv[1]), Mode.STEP)
    parts: dict[str, tuple[float, float]] = {}
    model = _noted(parts, "import", lambda: _import(config))
    engine = _noted(parts, "load, probe, warm-up", lambda: _ready(config, model))
    assert_one_thread()
    engine.close()
    print(json.dumps(parts))


def _import(config: StageConfig) -> ResolvedModel:
    import diffusers
    import torch  # noqa: F401 - part of what is timed

    from stage_runtime.executor import uni  # noqa: F401 - part of what is timed
    from stage_runtime.pipelines.served_checkpoint import resolve_model

    model = resolve_model(config.model)
    getattr(diffusers, model.record.pipeline_class)  # diffusers imports what is asked for
    return model


def _ready(config: StageConfig, model: ResolvedModel) -> Engine:
    from stage_runtime.assemble import build_engine

    engine = build_engine(config, model)
    engine.start()
    engine.wait_ready()
    return engine


def _noted(parts: dict[str, tuple[float, float]], name: str, work: Callable[[], T]) -> T:
    """What `work` makes; what it took goes into `parts`."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    parts[name] = (time.perf_counter() - wall, time.process_time() - cpu)
    return made


if __name__ == "__main__":
    main()
