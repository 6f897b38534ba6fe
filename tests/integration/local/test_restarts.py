"""A stage that ends by itself gets another life by its failure policy. Real processes, real signals."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from support.stage_process import CHECKPOINT, PATIENCE_S, PROMPT_S, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(300)

AGAIN = r"starts again, and will answer at (http://\S+)"


def manifest(folder: Path, policy: str, source: str = "embedded: shapes") -> Path:
    file = folder / "stage.yaml"
    file.write_text(
        "apiVersion: omnistage.io/v1alpha1\nkind: DiffusionStage\nmetadata: {name: drawn}\nspec:\n"
        f"  model: {{source: {{{source}}}}}\n"
        "  engine: {dtype: float32, executor: uni}\n"
        f"  failurePolicy: {{{policy}}}\n"
    )
    return file


def draw(stage: StageProcess) -> int:
    body = {"prompt": "a red circle", "seed": 0, "num_inference_steps": 2}
    url = f"{stage.wait_ready()}/v1/images/generations"
    return httpx.post(url, json=body, timeout=PATIENCE_S).status_code


def kill_child(stage: StageProcess, number: signal.Signals = signal.SIGKILL) -> psutil.Process:
    """End the pod's process from outside; it, once it is gone."""
    child = stage.child()
    child.send_signal(number)
    until(lambda: not is_alive(child), "it is gone", PROMPT_S)
    return child


def test_a_killed_stage_serves_again_at_the_same_address(tmp_path: Path) -> None:
    file = manifest(tmp_path, "backoff: {initialSeconds: 1}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        url = stage.wait_ready()
        assert draw(stage) == 200
        kill_child(stage)
        stage.wait_text("drawn was killed by SIGKILL")
        stage.wait_text("drawn starts again (in 1 s|at once)")
        assert stage.wait_text(AGAIN).group(1) == url
        stage.wait_text(r"(?s)starts again, .*is ready at")
        assert draw(stage) == 200
        stage.signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0


def test_a_stage_that_was_ready_for_long_enough_has_no_wait(tmp_path: Path) -> None:
    file = manifest(tmp_path, "resetAfterSeconds: 1, backoff: {initialSeconds: 3600, maxSeconds: 3600}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("is ready at")
        ready_s = time.monotonic()
        until(lambda: time.monotonic() > ready_s + 1.1, "it has been ready for a second")
        kill_child(stage)
        stage.wait_text("drawn starts again at once", PROMPT_S)
        stage.wait_text(AGAIN)


def test_a_model_that_is_gone_by_then_is_not_tried_again(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(CHECKPOINT, model)
    file = manifest(tmp_path, "backoff: {initialSeconds: 1}", f"hostPath: {{path: {model}}}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("will answer at")
        shutil.rmtree(model)
        kill_child(stage)
        assert stage.wait() == 65
        assert "drawn is not started again: another try with the same model" in stage.text


def test_past_the_budget_it_ends_with_the_code_of_the_last_life(tmp_path: Path) -> None:
    file = manifest(tmp_path, "maxRestarts: 1, backoff: {initialSeconds: 1}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("will answer at")
        kill_child(stage)
        stage.wait_text(AGAIN)
        kill_child(stage, signal.SIGABRT)
        assert stage.wait(PROMPT_S) == 128 + signal.SIGABRT
        assert "drawn was killed by SIGABRT" in stage.text
        assert "is not started again: it has been restarted as often as failurePolicy" in stage.text


def test_an_orderly_end_that_nobody_asked_this_process_for_is_a_failure(tmp_path: Path) -> None:
    file = manifest(tmp_path, "backoff: {initialSeconds: 1}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("will answer at")
        kill_child(stage, signal.SIGTERM)
        stage.wait_text("drawn ended, though nobody asked it to")
        stage.wait_text(AGAIN)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_two_lives_ends_it_at_once(number: signal.Signals, tmp_path: Path) -> None:
    file = manifest(tmp_path, "backoff: {initialSeconds: 300}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("will answer at")
        kill_child(stage)
        stage.wait_text(r"starts again in \d+ s")
        until(lambda: len(stage.family()) == 1, "the ranks of the life before have ended too", PROMPT_S)
        stage.signal(number)
        assert stage.wait(PROMPT_S) == 0


def test_ctrl_c_still_drains_in_a_later_life(tmp_path: Path) -> None:
    file = manifest(tmp_path, "backoff: {initialSeconds: 1}")
    with StageProcess.running(folder=tmp_path, manifest=file) as stage:
        stage.wait_text("will answer at")
        kill_child(stage)
        stage.wait_text(AGAIN)
        family = stage.family()
        stage.press_ctrl_c()
        assert stage.wait(PROMPT_S) == 0
        until(lambda: not any(map(is_alive, family)), "everything has ended", PROMPT_S)
        assert list(stage.temporary.glob("omnistage-*")) == []
