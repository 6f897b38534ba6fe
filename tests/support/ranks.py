"""Real processes that form one group over loopback, for tests of what ranks do together.

Each runs the same function of a module of `support`; what it returns, as JSON, is the rank's result.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
ROOTS: Final = [ROOT / name for name in ("crds", "worker", "models/shapes", "tests")]
TIMEOUT_S: Final = 60.0  # of a rendezvous and of each collective
PATIENCE_S: Final = 250.0
"""For ranks to end by themselves; they import torch, and diffusers' pipelines, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a rank ended. `result`: what its function returned, None when it raised."""

    code: int
    result: Any
    log: str


def run_ranks(function: str, n: int = 2, *, patience_s: float = PATIENCE_S, **arguments: Any) -> list[Ended]:
    """Run `support.<module>:<function>(context, **arguments)` in `n` ranks; `cfg` is `n`.

    A rank that does not end within `patience_s` fails the test, and all are killed.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        return _run(function, n, Path(folder) / "port", patience_s, arguments)


def _run(function: str, n: int, meeting: Path, patience_s: float, arguments: dict[str, Any]) -> list[Ended]:
    paths = os.pathsep.join(map(str, ROOTS))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.ranks",
                function,
                str(n),
                str(rank),
                str(meeting),
                json.dumps(arguments),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    deadline = time.monotonic() + patience_s
    ended = []
    try:
        for process in ranks:
            out, log = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            result = json.loads(out.splitlines()[-1]) if process.returncode == 0 else None
            ended.append(Ended(process.returncode, result, log))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    return ended


def results(function: str, n: int = 2, **arguments: Any) -> list[Any]:
    """What each of `n` ranks returned; a rank that failed fails the test with its log."""
    ended = run_ranks(function, n, **arguments)
    for rank, one in enumerate(ended):
        assert one.code == 0, f"rank {rank} ended with {one.code}:\n{one.log[-3000:]}"
    return [one.result for one in ended]


def _told_port(meeting: Path) -> int:
    """The port that rank 0 found free, once it is there. Nobody can take it in between."""
    until_s = time.monotonic() + TIMEOUT_S
    while not meeting.exists():
        assert time.monotonic() < until_s, "rank 0 serves no store"
        time.sleep(0.01)
    return int(meeting.read_text())


def _tell_port(meeting: Path, port: int) -> None:
    unfinished = meeting.with_suffix(".part")
    unfinished.write_text(str(port))
    unfinished.rename(meeting)


def _main(function: str, n: str, rank: str, meeting: str, arguments: str) -> None:
    import torch

    from stage_api.parallelism import ParallelismSpec
    from stage_api.topology import derive
    from stage_runtime.parallel.context import join, serve_store

    torch.set_num_threads(1)
    module, name = function.split(":")
    run: Callable[..., Any] = getattr(importlib.import_module(f"support.{module}"), name)
    topology = derive(ParallelismSpec(cfg=int(n)), int(n))
    store = None
    if rank == "0":
        store, port = serve_store("127.0.0.1", 0)
        _tell_port(Path(meeting), port)
    at = ("127.0.0.1", _told_port(Path(meeting)))
    context = join(topology, int(rank), at, 1, TIMEOUT_S, data=("cfg", "copy"))
    assert context is not None
    context.keep(store)
    result = run(context, **json.loads(arguments))
    context.close()
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
