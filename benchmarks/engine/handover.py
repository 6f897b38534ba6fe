"""A large result from a rank's memory into bytes that the engine owns, beside one plain copy of as many bytes.

Timed from asking the rank for it, so one message each way is a part of it. The first time a size comes, the system has
to find and clear the memory for its block, and the rank makes the bytes: in the details, and not in the median.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks.engine.calling import PATIENCE_S, ranks
from benchmarks.engine.sides import Sides
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Times
from stage_runtime.core.control import Invoke
from stage_runtime.core.outcome import Completed
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.codec import attach
from stage_runtime.ipc.messages import Ask, OutputReady
from stage_runtime.ipc.shm import Receiver

AIM_MS: Final = {12: 2.5, 200: 100.0}
ROUNDS: Final = 15
RANK: Final = 0


def measure(options: Options, _sides: Sides) -> list[Row]:
    """Two rows a size: how long, and beside a plain copy."""
    receiver = Receiver()
    file_pipe = receiver.file_pipe()
    channel = EngineChannel()
    rows = []
    try:
        with ranks("results", channel.address, (RANK,), file_pipe.number):
            file_pipe.close()
            try:
                channel.receive(PATIENCE_S)
                for megabytes in AIM_MS:
                    rows += _measured(channel, receiver, megabytes, options.rounds(ROUNDS))
            finally:
                channel.close()
    finally:
        receiver.close()
    return rows


def _measured(channel: EngineChannel, receiver: Receiver, megabytes: int, rounds: int) -> list[Row]:
    handed, copied = Times(), Times()
    handed.take(lambda: _result(channel, receiver, megabytes))
    first_ms = handed.wall.pop() * 1e3  # the rank makes the result in it, too
    data = _result(channel, receiver, megabytes).output.data
    for _ in range(rounds):
        handed.take(lambda: _result(channel, receiver, megabytes))
        copied.take(lambda: bytearray(data))
    took_ms = median(handed.wall) * 1e3
    copy_ms = median(copied.wall) * 1e3
    details: dict[str, object] = {
        "wall_ms_median": took_ms,
        "copy_ms_median": copy_ms,
        "first_time_ms": first_ms,
    }
    return [
        Row(
            what=f"{megabytes} MB handed over and owned",
            value=took_ms,
            unit="ms",
            aim=AIM_MS[megabytes],
            details=details,
        ),
        Row(
            what="… beside a plain copy",
            value=copy_ms,
            unit="ms",
            ratio=took_ms / copy_ms,
            details=details,
        ),
    ]


def _result(channel: EngineChannel, receiver: Receiver, megabytes: int) -> Completed:
    channel.send([RANK], Ask(1, Invoke("result", {"megabytes": megabytes})))
    (reply,) = channel.receive(PATIENCE_S)
    assert isinstance(reply, OutputReady), reply
    outcome = attach(reply.outcome, reply.parcel, receiver.take)
    assert isinstance(outcome, Completed)
    assert len(outcome.output.data) == megabytes * 1_000_000
    return outcome
