"""One process that is all of a stage: what signals do to it, in each phase. The command that a pod runs, over HTTP."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import psutil

from faults.engines import FLOOR_S
from faults.inject import Seen
from faults.matrix import Cell, Fault, Layout, Phase
from faults.points import ENV_FOLDER, Plan
from faults.rig import NEIGHBOURS, PLACES, STEPS, config_of
from stage_api.spec import DrainSpec
from support.stage_process import PATIENCE_S, ROOT, StageProcess, until

FROZEN_S: Final = FLOOR_S + 2.0
"""Longer than a tick may take, the looks of who watches it included."""


def is_for_pod(cell: Cell) -> bool:
    """A signal to the one process that there is."""
    return cell.layout is Layout.UNI and cell.fault in (Fault.SIGKILL, Fault.SIGSTOP, Fault.SIGTERM)


def play_pod(cell: Cell) -> Seen:
    """What happens to the clients and to the process."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor(1 + NEIGHBOURS) as threads:
        folder = Path(name)
        config = config_of(cell.layout, cell.mode)
        drain = DrainSpec(admit_seconds=0, timeout_seconds=60)
        config = config.model_copy(update={"drain": drain})
        path = ":".join(str(ROOT / one) for one in ("crds", "worker", "tests", "models/shapes"))
        env = {ENV_FOLDER: str(folder), "PYTHONPATH": path}
        with StageProcess.pod(config.encode(), folder, env=env) as pod:
            url = pod.wait_pod_ready()
            _ask(url)  # its pace is known
            answers = _under_way(cell, pod, threads)
            _strike(cell, pod)
            if not answers:
                answers = [threads.submit(_ask, url)]
            victim, *neighbours = [_in_words(answer) for answer in answers]
            return Seen(victim, tuple(neighbours), _end(cell, pod))


def _under_way(cell: Cell, pod: StageProcess, threads: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    if cell.phase is Phase.IDLE:
        return []
    place, nth = PLACES[cell.phase]
    Plan(place, nth, 1).write(pod.folder, 0)
    count = 1 + NEIGHBOURS
    answers = [threads.submit(_ask, pod.wait_pod_ready()) for _ in range(count)]
    until((pod.folder / "there-0").exists, f"it is {cell.phase}")
    until(lambda: pod.metric("requests_running") + pod.metric("requests_waiting") == count, "all are there")
    return answers


def _strike(cell: Cell, pod: StageProcess) -> None:
    number = signal.Signals[cell.fault]
    pod.signal(number)
    if number is signal.SIGSTOP:
        process = psutil.Process(pod.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, "it is frozen")
        thaw_s = time.monotonic() + FROZEN_S
        threading.Event().wait(max(0.0, thaw_s - time.monotonic()))
        pod.signal(signal.SIGCONT)
    elif number is signal.SIGTERM and cell.phase is not Phase.IDLE:
        pod.wait_text("draining")
    elif cell.phase is Phase.IDLE:
        pod.wait()
    (pod.folder / "go-0").write_text("on")


def _end(cell: Cell, pod: StageProcess) -> str:
    if cell.fault is Fault.SIGSTOP:
        pod.signal(signal.SIGTERM)
    code = pod.wait()
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _ask(url: str) -> httpx.Response:
    body = {"prompt": "a red circle", "seed": 7, "num_inference_steps": STEPS}
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=PATIENCE_S)


def _in_words(answer: Future[httpx.Response]) -> str:
    try:
        response = answer.result(PATIENCE_S)
    except httpx.TransportError:
        return "broken"
    if response.status_code == httpx.codes.OK:
        return "completed"
    return f"{response.status_code} {response.json()['error']['code']}"
