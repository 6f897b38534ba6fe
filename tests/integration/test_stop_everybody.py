"""Every process of a run is told to stop at once, as systemd does with a control group: what runs is delivered."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.stage_process import PATIENCE_S, StageProcess, until

pytestmark = pytest.mark.timeout(400)

REQUESTS = 6
MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: told}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, device: cpu, maxNumSeqs: 6, {engine}}}
  startup: {{timeoutSeconds: 180}}
{more}
"""
LAYOUTS = {
    "uni": ("executor: uni", ""),
    "mp": ("executor: mp", "  parallelism: {cfg: 2}"),
    "child": ("executor: mp, process: child", ""),
    "two pods": ("executor: mp", "  parallelism: {data: 2}\n  topology: {ranksPerPod: 1}"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_runs_is_delivered_and_all_end_in_order(layout: str, tmp_path: Path) -> None:
    engine, more = LAYOUTS[layout]
    manifest = tmp_path / "stage.yaml"
    manifest.write_text(MANIFEST.format(engine=engine, more=more))
    with (
        StageProcess.running(folder=tmp_path, manifest=manifest) as stage,
        ThreadPoolExecutor(REQUESTS) as threads,
    ):
        url = f"{stage.wait_ready()}/v1/images/generations"

        def draw(seed: int) -> int:
            body = {"prompt": "a red circle", "seed": seed, "num_inference_steps": 60}
            return httpx.post(url, json=body, timeout=PATIENCE_S).status_code

        answers = [threads.submit(draw, seed) for seed in range(REQUESTS)]
        names = ("requests_running", "requests_waiting")
        until(lambda: sum(stage.metric(name) for name in names) == REQUESTS, "all of them are there")
        for process in stage.family():
            process.send_signal(signal.SIGTERM)
        assert [answer.result() for answer in answers] == [200] * REQUESTS
        assert stage.wait() == 0
