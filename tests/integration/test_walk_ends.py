"""How a local run ends: drained, interrupted, killed, or never really begun. Real signals to real processes."""

from __future__ import annotations

import signal
import socket
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from support.stage_process import EXAMPLE, PATIENCE_S, PROMPT_S, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(300)

LONG = 1000  # denoise steps: longer than any test waits


def ask(stage: StageProcess, steps: int) -> httpx.Response:
    body = {"prompt": "a red circle", "seed": 0, "num_inference_steps": steps}
    return httpx.post(f"{stage.wait_ready()}/v1/images/generations", json=body, timeout=PATIENCE_S)


def gone(family: list[psutil.Process], patience_s: float = PROMPT_S) -> None:
    until(lambda: not any(map(is_alive, family)), "everything has ended", patience_s)


def asked(
    threads: ThreadPoolExecutor, stage: StageProcess, steps: int, count: int
) -> list[Future[httpx.Response]]:
    """Requests that are under way: all of them run."""
    answers = [threads.submit(ask, stage, steps) for _ in range(count)]
    until(lambda: stage.metric("requests_running") == count, "they run")
    return answers


def test_sigterm_lets_what_runs_finish_and_leaves_nothing(tmp_path: Path) -> None:
    """Case B93."""
    with StageProcess.running(folder=tmp_path) as stage, ThreadPoolExecutor(3) as threads:
        answers = asked(threads, stage, 30, 3)
        family = stage.family()
        stage.signal(signal.SIGTERM)
        stage.wait_text("draining")
        stage.signal(signal.SIGTERM)  # said twice, it means the same
        with pytest.raises(httpx.TransportError):  # in the end nobody listens
            until(lambda: ask(stage, 1).status_code != 503, "none but 503")
        assert [answer.result(PATIENCE_S).status_code for answer in answers] == [200, 200, 200]
        assert stage.wait() == 0
        assert len(family) == 3, "the command, the pod and its rank"
        gone(family)
        assert list(stage.temporary.glob("omnistage-*")) == []


def test_ctrl_c_drains_and_a_second_one_ends_it_at_once(tmp_path: Path) -> None:
    with StageProcess.running(folder=tmp_path) as stage, ThreadPoolExecutor(1) as threads:
        (answer,) = asked(threads, stage, LONG, 1)
        family = stage.family()
        stage.press_ctrl_c()
        stage.wait_text("draining")
        assert ask(stage, 1).status_code == 503
        assert not answer.done()
        stage.press_ctrl_c()
        assert stage.wait(PROMPT_S) == 128 + signal.SIGKILL
        gone(family)
        assert isinstance(answer.exception(PATIENCE_S), httpx.HTTPError)
        assert "was killed by SIGKILL" in stage.text
        assert list(stage.temporary.glob("omnistage-*")) == []


def test_a_killed_parent_takes_its_pod_with_it(tmp_path: Path) -> None:
    """Case B07."""
    with StageProcess.running(folder=tmp_path) as stage:
        stage.wait_text("will answer at")
        family = stage.family()
        assert len(family) >= 2
        stage.signal(signal.SIGKILL)
        gone(family)
        assert list(stage.temporary.glob("omnistage-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_model_loads_ends_it_promptly(number: signal.Signals, tmp_path: Path) -> None:
    with StageProcess.running(folder=tmp_path) as stage:
        stage.wait_text("will answer at")
        family = stage.family()
        stage.signal(number)
        assert stage.wait(PROMPT_S) == 0
        gone(family)
        assert list(stage.temporary.glob("omnistage-*")) == []


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    arguments = ("run", EXAMPLE, "--port", 0)
    with StageProcess(*arguments, folder=tmp_path, wrapper=("nohup",)) as stage:
        stage.wait_text("will answer at")
        stage.signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            stage.wait(0.5)
        stage.signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0


def test_a_signal_before_the_pod_has_begun_is_not_lost(tmp_path: Path) -> None:
    with StageProcess.running(folder=tmp_path) as stage:
        family = [psutil.Process(stage.pid), stage.child()]
        stage.signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0
        gone(family)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with StageProcess("run", stage_manifest(tmp_path), "--port", port, folder=tmp_path) as stage:
            assert stage.wait() == 64
            assert f"can't listen on 127.0.0.1, port {port}: Address already in use" in stage.text
            assert "Traceback" not in stage.text
            assert "is not started again" in stage.text


def stage_manifest(folder: Path, model: str = "embedded: shapes") -> Path:
    file = folder / "stage.yaml"
    file.write_text(
        "apiVersion: omnistage.io/v1alpha1\nkind: DiffusionStage\nmetadata: {name: drawn}\n"
        f"spec: {{model: {{source: {{{model}}}}}, engine: {{dtype: float32}}}}\n"
    )
    return file


def test_a_missing_model_is_a_model_error_and_says_what_is_missing(tmp_path: Path) -> None:
    manifest = stage_manifest(tmp_path, "hostPath: {path: /nowhere}")
    with StageProcess.running(folder=tmp_path, manifest=manifest) as stage:
        assert stage.wait() == 65
        assert "drawn ended with 65: /nowhere: no such folder" in stage.text
        assert "Traceback" not in stage.text
