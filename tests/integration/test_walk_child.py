"""A pod whose engine has a process of its own: it serves as any, and its death is the pod's."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from stage_api.config import StageConfig
from stage_api.manifest import parse_stage
from support.stage_process import PATIENCE_S, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(300)

PROMPT = "a large red circle in the center on a white background"


def config(executor: str) -> str:
    """The config of a shapes stage."""
    value = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "apart"},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "engine": {"dtype": "float32", "executor": executor, "process": "child"},
            "drain": {"admitSeconds": 0},
        },
    }
    return StageConfig.from_stage(parse_stage(value)).encode()


def ready(stage: StageProcess) -> str:
    """Its URL, once it serves."""
    url = stage.wait_text(r'"url": "(http://[^"]+)"').group(1)
    until(lambda: httpx.get(f"{url}/readyz").status_code == 200, "ready")
    return url


def ask(url: str, steps: int) -> httpx.Response:
    body = {"prompt": PROMPT, "num_inference_steps": steps, "seed": 1}
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=PATIENCE_S)


def is_drawing(url: str) -> bool:
    return 'omnistage_requests_running{stage="apart"} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_stage_with_its_engine_apart_draws_counts_and_drains(tmp_path: Path) -> None:
    with StageProcess.pod(config("uni"), tmp_path) as stage:
        url = ready(stage)
        assert ask(url, 3).status_code == 200
        (child,) = psutil.Process(stage.pid).children()
        assert "torch" not in stage.facts(stage.pid)["modules"]
        assert "torch" in stage.facts(child.pid)["modules"]
        metrics = httpx.get(f"{url}/metrics").text
        for line in (
            'omnistage_requests_total{outcome="completed",stage="apart"} 1.0',
            'omnistage_wave_size_count{stage="apart"} 3.0',
            'omnistage_queue_seconds_count{stage="apart"} 1.0',
            'omnistage_phase_seconds_count{phase="denoise",stage="apart"} 1.0',
            'omnistage_outstanding{kind="scripts",stage="apart"} 0.0',
        ):
            assert line in metrics
        with ThreadPoolExecutor(1) as asker:
            asked = asker.submit(ask, url, 40)
            until(lambda: is_drawing(url), "a running request")
            stage.signal(signal.SIGTERM)
            assert asked.result().status_code == 200
        assert stage.wait() == 0
        until(lambda: not is_alive(child), "the child's end")
    assert list(stage.temporary.glob("omnistage-*")) == []


def test_a_killed_engine_process_is_the_death_of_its_pod(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with StageProcess.pod(config("mp"), tmp_path) as stage:
        url = ready(stage)
        (child,) = psutil.Process(stage.pid).children()
        (rank,) = child.children()
        with ThreadPoolExecutor(1) as asker:
            asked = asker.submit(ask, url, 1000)
            until(lambda: is_drawing(url), "a running request")
            child.kill()
            answer = asked.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        assert stage.wait() == 70
        assert (stage.report["exitCode"], stage.report["reason"]) == (70, "EngineDeadError")
        assert "SIGKILL" in stage.report["message"]
        until(lambda: not is_alive(rank), "the rank's end")
    assert set(os.listdir("/dev/shm")) <= before
    assert list(stage.temporary.glob("omnistage-*")) == []
