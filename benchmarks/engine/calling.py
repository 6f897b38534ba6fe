"""A control call to two ranks, as the engine's loop thread issues it, beside the same bytes over plain pyzmq.

Each side has two processes of its own. The calls come 5 ms apart, so that both ends wait for each, as they do in life.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import zmq

from benchmarks.engine import far_end
from benchmarks.engine.sides import Sides
from benchmarks.machine import cpu_seconds
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Times
from stage_runtime.core.control import Health
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.codec import encode
from stage_runtime.ipc.messages import Answered, Ask

RANKS: Final = (0, 1)
CALLS: Final = 500
PACE_S: Final = 0.005
PATIENCE_S: Final = 60.0
AIM_RATIO: Final = 1.25
AIM_CPU_MS: Final = 0.3
CALL: Final = Ask(1, Health())


def measure(options: Options, _sides: Sides) -> list[Row]:
    """Wall time of a call beside pyzmq's, and CPU time of all three processes."""
    times = {"ours": Times(), "raw": Times()}
    spent = dict.fromkeys(times, 0.0)
    calls = options.rounds(CALLS)
    with ExitStack() as stack:
        sides = {"ours": stack.enter_context(_ours()), "raw": stack.enter_context(_raw())}
        before = {name: cpu_seconds(ranks) for name, (_, ranks) in sides.items()}
        for number in range(calls):
            names = list(sides) if number % 2 else list(reversed(sides))
            for name in names:
                time.sleep(PACE_S)
                times[name].take(sides[name][0])
        for name, (_, ranks) in sides.items():
            spent[name] = (cpu_seconds(ranks) - before[name] + sum(times[name].cpu)) * 1e3 / calls
    walls = {name: median(one.wall) * 1e3 for name, one in times.items()}
    details: dict[str, object] = {
        "wall_ms_median": walls,
        "engine_cpu_ms_median": {name: median(one.cpu) * 1e3 for name, one in times.items()},
        "cpu_ms_a_call": spent,
    }
    return [
        Row(
            what="control call to 2 ranks, beside raw pyzmq",
            value=walls["ours"],
            unit="ms",
            ratio=walls["ours"] / walls["raw"],
            by_cpu=spent["ours"] / spent["raw"] if spent["raw"] else None,
            aim=AIM_RATIO,
            details=details,
        ),
        Row(
            what="control call to 2 ranks, CPU of all processes",
            value=spent["ours"],
            unit="ms",
            by_cpu=spent["ours"],
            aim=AIM_CPU_MS,
            details=details,
        ),
    ]


@contextmanager
def ranks(
    kind: str, address: str, numbers: tuple[int, ...], file_pipe: int | None = None
) -> Iterator[list[psutil.Process]]:
    """Processes at the far end. They end when their engine's channel closes, so that has to close first."""
    program = str(Path(far_end.__file__))
    keep = () if file_pipe is None else (file_pipe,)
    started = [
        subprocess.Popen([sys.executable, program, kind, address, str(one), *map(str, keep)], pass_fds=keep)
        for one in numbers
    ]
    try:
        yield [psutil.Process(one.pid) for one in started]
    finally:
        for one in started:
            try:
                one.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


@contextmanager
def _ours() -> Iterator[tuple[Callable[[], object], list[psutil.Process]]]:
    channel = EngineChannel()

    def call(count: int = len(RANKS)) -> None:
        channel.send(RANKS, CALL)
        answers = 0
        while answers < count:
            answers += sum(isinstance(one, Answered) for one in channel.receive(PATIENCE_S))

    with ExitStack() as stack:
        processes = stack.enter_context(ranks("calls", channel.address, RANKS))
        stack.callback(channel.close)
        greeted = 0
        while greeted < len(RANKS):
            greeted += len(channel.receive(PATIENCE_S))
        yield call, processes


@contextmanager
def _raw() -> Iterator[tuple[Callable[[], object], list[psutil.Process]]]:
    data = encode(CALL)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.ROUTER))
        socket.router_mandatory = True
        address = f"ipc://{folder}/raw"
        socket.bind(address)

        def send(what: bytes) -> None:
            for rank in RANKS:
                socket.send_multipart([b"%d" % rank, what])

        def call() -> None:
            send(data)
            for _ in RANKS:
                socket.recv_multipart()

        processes = stack.enter_context(ranks("raw", address, RANKS))
        stack.callback(send, far_end.STOP)
        for _ in RANKS:
            socket.recv_multipart()
        yield call, processes
