"""A replica of two pods on this machine, as `omnistage run` starts it."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import psutil
import pytest

from stage_api import names
from support.far_pod import MANIFEST
from support.stage_process import PATIENCE_S, PROMPT_S, StageProcess, until

pytestmark = pytest.mark.timeout(300)


def draw(stage: StageProcess) -> int:
    body = {"prompt": "a red circle", "seed": 0, "num_inference_steps": 2, "n": 2}
    return httpx.post(
        f"{stage.wait_ready()}/v1/images/generations", json=body, timeout=PATIENCE_S
    ).status_code


def second_pod(stage: StageProcess) -> psutil.Process:
    """Its process, once it is there."""

    def found() -> list[psutil.Process]:
        pods = psutil.Process(stage.pid).children()
        return [pod for pod in pods if pod.environ().get(names.ENV_GROUP_RANK) == "1"]

    return until(found, "the second pod")[0]


def manifest(folder: Path, policy: str) -> Path:
    file = folder / "stage.yaml"
    text = MANIFEST.format(mode="step", cfg=1, data=2, startup_s=90)
    file.write_text(f"{text}  failurePolicy: {{{policy}}}\n")
    return file


def test_two_pods_live_die_and_live_again_together(tmp_path: Path) -> None:
    file = manifest(tmp_path, "backoff: {initialSeconds: 1}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        assert draw(stage) == 200
        (rank,) = second_pod(stage).children()
        rank.kill()
        stage.wait_text(r"shapes ended with 70: .*rank 1", PROMPT_S)
        stage.wait_text(r"(?s)starts again, .*is ready at")
        assert draw(stage) == 200
        stage.signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0
        assert stage.family() == []
    assert list(stage.temporary.glob("omnistage*")) == []


def test_a_pod_that_can_not_start_ends_the_first(tmp_path: Path) -> None:
    """The first pod waits for the second, which has not even dialled it."""
    with StageProcess.running(folder=tmp_path, manifest=manifest(tmp_path, "maxRestarts: 0")) as stage:
        second_pod(stage).kill()
        assert stage.wait(PROMPT_S) == 128 + signal.SIGKILL
        assert "shapes was killed by SIGKILL" in stage.text
