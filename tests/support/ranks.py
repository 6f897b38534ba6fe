"""Real processes that form one group over loopback, for tests of what ranks do together.

They stand ready, since each costs an import of torch: every call forms a group of its own among them, so that nothing
of one test is left for the next. In a call each runs the same function of a module of `support`; what it returns, as
JSON, is the rank's result.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).parents[2]
ROOTS: Final = [ROOT / name for name in ("crds", "worker", "models/shapes", "tests")]
TIMEOUT_S: Final = 60.0  # of a rendezvous and of each collective
PATIENCE_S: Final = 250.0
"""For all ranks to come to the end of a call; they import torch, and diffusers' pipelines, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a rank in a call. `result`: what its function returned, None when it raised or left."""

    code: int | None
    """Its exit code, where it left."""
    result: Any
    error: str


class Ranks:
    """`n` processes between the first call and `close`; `cfg` is `n`."""

    def __init__(self, folder: Path, n: int = 2) -> None:
        """`folder` is their own: where they meet, and their logs."""
        self._folder, self._n = folder, n
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._calls = count()

    def run(self, function: str, *, patience_s: float = PATIENCE_S, **arguments: Any) -> list[Ended]:
        """`support.<module>:<function>(context, **arguments)` in each rank.

        Ranks that don't come to an end within `patience_s` are killed. Who left is started anew for the next call.
        """
        meeting = self._folder / f"port-{next(self._calls)}"
        for rank in range(self._n):
            if rank not in self._processes:
                self._processes[rank] = self._start(rank)
        for process in self._processes.values():
            _pipe(process.stdin).write(json.dumps([function, str(meeting), arguments]) + "\n")
            _pipe(process.stdin).flush()
        patience = threading.Timer(patience_s, self._kill)
        patience.start()
        try:
            return [self._ended(rank) for rank in range(self._n)]
        finally:
            patience.cancel()
            patience.join()

    def results(self, function: str, **arguments: Any) -> list[Any]:
        """What each rank returned; one that raised or left fails the test."""
        ended = self.run(function, **arguments)
        for rank, one in enumerate(ended):
            assert not one.error, f"rank {rank}: {one.error}"
        return [one.result for one in ended]

    def close(self) -> None:
        """End them."""
        self._kill()
        for rank in list(self._processes):
            self._left(rank)

    def _start(self, rank: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS)), "OMP_NUM_THREADS": "1"}
        with (self._folder / f"{rank}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "support.ranks", str(self._n), str(rank)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _ended(self, rank: int) -> Ended:
        line = _pipe(self._processes[rank].stdout).readline()
        if line:
            return Ended(None, **json.loads(line))
        code = self._left(rank)
        log = (self._folder / f"{rank}.log").read_text()
        return Ended(code, None, f"left with {code}:\n{log[-3000:]}")

    def _left(self, rank: int) -> int:
        process = self._processes.pop(rank)
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            _pipe(pipe).close()
        return code

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


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


def _called(n: int, rank: int, function: str, meeting: Path, arguments: dict[str, Any]) -> Any:
    from stage_api.parallelism import ParallelismSpec
    from stage_api.topology import derive
    from stage_runtime.parallel.context import join, serve_store

    module, name = function.split(":")
    run: Callable[..., Any] = getattr(importlib.import_module(f"support.{module}"), name)
    topology = derive(ParallelismSpec(cfg=n), n)
    store = None
    if rank == 0:
        store, port = serve_store("127.0.0.1", 0)
        _tell_port(meeting, port)
    at = ("127.0.0.1", _told_port(meeting))
    context = join(topology, rank, at, 1, TIMEOUT_S, data=("cfg", "copy"))
    assert context is not None
    context.keep(store)
    try:
        return run(context, **arguments)
    finally:
        context.close()


def _main(n: str, rank: str) -> None:
    """Answer each call with a line, until nobody calls any more."""
    import torch

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr  # what else is printed is no answer
    for line in sys.stdin:
        function, meeting, arguments = json.loads(line)
        told = {"result": None, "error": ""}
        try:
            told["result"] = _called(int(n), int(rank), function, Path(meeting), arguments)
        except Exception:  # noqa: BLE001 - whoever called is told
            told["error"] = traceback.format_exc()
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
