"""Ranks as processes: how fast they start, how fast a killed one is told, what idle ones cost, how they end."""

from __future__ import annotations

import os
import signal
import time
from statistics import median

import psutil

from benchmarks.engine.sides import EQUAL, MODES, SLOTS, Sides, Stage
from benchmarks.machine import cpu_seconds
from benchmarks.options import Options
from benchmarks.report import Row
from stage_api.spec import Mode
from stage_runtime.core.errors import EngineDeadError

ENDLESS_STEPS = 200
IDLE_S = 5.0
AIM_START_S = {1: 6.0, 2: 8.0}
AIM_ERROR_S = 0.2
AIM_IDLE_CORES = 0.02
AIM_CLOSE_S = 1.0
PEER_START = "11.5–12.7 s, and 7.6–8.5 s of imports"
PEER_ERROR = {Mode.REQUEST: "0.40 s", Mode.STEP: "5.0 s"}


def measure(options: Options, sides: Sides) -> list[Row]:
    """Start, death, idle and close, with one rank and with two."""
    rows = []
    for ranks in (1, 2):
        starts, errors, idle, closes = [], {mode: [] for mode in MODES}, [], []
        for number in range(options.rounds(6)):
            mode = MODES[number % len(MODES)]
            began_s = time.perf_counter()
            stage = Stage.ready(sides.folder, mode, executor="mp", data=ranks)
            starts.append(time.perf_counter() - began_s)
            stage.draw(EQUAL[:ranks], range(ranks), 2)
            if number < 2:
                idle.append(_idle_cores(0.5 if options.quick else IDLE_S))
            if number % 3 < 2:
                errors[mode].append(_death_s(stage))
                stage.engine.close()
            else:
                closes.append(_close_s(stage))
        if not closes:  # in a quick run
            closes.append(_close_s(Stage.ready(sides.folder, MODES[0], executor="mp", data=ranks)))
        rows += _rows(ranks, starts, errors, idle, closes)
    return rows


def _rows(
    ranks: int, starts: list[float], errors: dict[Mode, list[float]], idle: list[float], closes: list[float]
) -> list[Row]:
    of = f"mp, {ranks} rank{'s' * (ranks > 1)}"
    return [
        Row(
            what=f"start, {of}",
            value=median(starts),
            unit="s",
            aim=AIM_START_S[ranks],
            peer=PEER_START,
            details={"s": starts},
        ),
        *(
            Row(
                what=f"rank killed to client's error, {of}, {mode} mode",
                value=max(seconds),
                unit="s",
                aim=AIM_ERROR_S,
                peer=PEER_ERROR[mode],
                details={"s": seconds},
            )
            for mode, seconds in errors.items()
            if seconds
        ),
        Row(what=f"idle, {of}", value=max(idle), unit="cores", aim=AIM_IDLE_CORES, details={"cores": idle}),
        Row(
            what=f"close, {of}",
            value=median(closes),
            unit="s",
            aim=AIM_CLOSE_S,
            peer="3.3–4.3 s",
            details={"s": closes},
        ),
    ]


def _death_s(stage: Stage) -> float:
    """From SIGKILL of the last rank, in mid-run, to the last client's typed error."""
    streams = stage.ask(EQUAL, range(SLOTS), ENDLESS_STEPS)
    for stream in streams:
        next(iter(stream))  # it has moved
    began_s = time.perf_counter()
    os.kill(max(process.pid for process in psutil.Process().children()), signal.SIGKILL)
    for stream in streams:
        try:
            stream.result(timeout_s=30)
        except EngineDeadError:
            continue
        raise RuntimeError("a request ended well although its rank was killed")
    return time.perf_counter() - began_s


def _idle_cores(seconds: float) -> float:
    """Cores that this process and the ranks keep busy while nothing is asked."""
    everybody = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before, began_s = cpu_seconds(everybody), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(everybody) - before) / (time.perf_counter() - began_s)


def _close_s(stage: Stage) -> float:
    """With every slot taken."""
    streams = stage.ask(EQUAL, range(SLOTS), ENDLESS_STEPS)
    for stream in streams:
        next(iter(stream))
    began_s = time.perf_counter()
    stage.engine.close()
    return time.perf_counter() - began_s
