"""A stage served over HTTP as `omnistage run` does it: until it is ready, while it is idle, until it has left.

CPU time is that of the command and of the stage that it starts.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.engine.models import SHAPES
from benchmarks.engine.sides import GUIDANCE, SIDE, STEPS, Sides
from benchmarks.options import Options
from benchmarks.report import Row

MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "shapes.yaml"
AIM_CORES = 0.02
WINDOW_S = 5.0
START_LIMIT_S, STOP_LIMIT_S = 120.0, 30.0
PEER_IDLE = "1.0 (sglang); 1 CPU-second a sparse request (vLLM-Omni, mp)"


def measure(options: Options, _sides: Sides) -> list[Row]:
    """Ready, idle, stopped."""
    window_s = 1.0 if options.quick else WINDOW_S
    began = time.perf_counter()
    with _served() as (url, command):
        ready_s = time.perf_counter() - began
        _draw(url)
        time.sleep(1.0)
        before = _cpu_seconds(command)
        time.sleep(window_s)
        idle_cores = (_cpu_seconds(command) - before) / window_s
        began = time.perf_counter()
        command.send_signal(signal.SIGTERM)
        code = command.wait(STOP_LIMIT_S)
        stopped_s = time.perf_counter() - began
    if code != 0:
        raise RuntimeError(f"the stage left with {code}; expected 0")
    return [
        Row(what="served: command to ready", value=ready_s, unit="s"),
        Row(
            what=f"served: CPU while idle, {window_s:g} s",
            value=idle_cores,
            unit="cores",
            by_cpu=idle_cores,
            aim=AIM_CORES,
            peer=PEER_IDLE,
        ),
        Row(what="served: SIGTERM to exit", value=stopped_s, unit="s"),
    ]


@contextmanager
def _served() -> Iterator[tuple[str, psutil.Popen]]:
    """The address and the command, which is gone afterwards."""
    command = psutil.Popen(
        [sys.executable, "-m", "stage_runtime.cli", "run", str(MANIFEST), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _wait_ready(command), command
    finally:
        if command.poll() is None:
            command.terminate()
            try:
                command.wait(STOP_LIMIT_S)
            except psutil.TimeoutExpired:
                command.kill()
        command.stdout.close()


def _wait_ready(command: psutil.Popen) -> str:
    """Follow what it says until it serves."""
    url = ""
    patience = threading.Timer(START_LIMIT_S, command.terminate)
    patience.start()
    try:
        for line in command.stdout:
            if found := re.search(r"http://\S+?:\d+", line):
                url = found.group()
            if "Ctrl-C" in line:  # its last words before it serves
                break
    finally:
        patience.cancel()
    urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
    return url


def _draw(url: str) -> None:
    """One picture, so that what is idle has worked."""
    asked = {
        "model": SHAPES,
        "prompt": "a red circle",
        "size": f"{SIDE}x{SIDE}",
        "seed": 0,
        "num_inference_steps": STEPS,
        "guidance_scale": GUIDANCE,
    }
    request = urllib.request.Request(
        f"{url}/v1/images/generations",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def _cpu_seconds(command: psutil.Popen) -> float:
    """Of the command and all that it started."""
    times = [one.cpu_times() for one in (command, *command.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))
