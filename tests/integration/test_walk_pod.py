"""The command of a pod by itself: what it says, and with which code and report it ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stage_api.config import StageConfig
from stage_api.manifest import parse_stage
from stage_api.outcome import ExitCode
from support.stage_process import CHECKPOINT, PROMPT_S, StageProcess, environment, until

pytestmark = pytest.mark.timeout(300)

IN_A_NAMESPACE = ("unshare", "--fork", "--pid", "--kill-child")


def config(spec: dict[str, Any] | None = None, **engine: object) -> str:
    """The config of a shapes stage."""
    value = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "drawn"},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "engine": {"dtype": "float32", "executor": "uni", **engine},
            **(spec or {}),
        },
    }
    return StageConfig.from_stage(parse_stage(value)).encode()


def lines(stage: StageProcess) -> list[dict[str, Any]]:
    """Its log; every line of it is JSON."""
    return [json.loads(line) for line in stage.text.splitlines()]


def url_of(stage: StageProcess) -> str:
    return stage.wait_text(r'"url": "(http://[^"]+)"').group(1)


def test_a_log_level_that_there_is_not_is_a_fault_of_the_config() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stage_runtime", "serve", "--config", "/nowhere"],
        env=environment(OMNISTAGE_LOG_LEVEL="chatty"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.CONFIG
    assert json.loads(done.stderr.splitlines()[0])["path"] == "OMNISTAGE_LOG_LEVEL"


def test_every_fault_of_a_config_is_logged_and_the_code_is_64(tmp_path: Path) -> None:
    value = json.loads(config())
    value["engine"] |= {"mode": "fast", "maxNumSeqs": 0}
    with StageProcess.pod(json.dumps(value), tmp_path) as stage:
        assert stage.wait() == 64
        faults = {line["path"]: line for line in lines(stage) if line["message"] == "config is wrong"}
        assert set(faults) == {"engine.mode", "engine.maxNumSeqs"}
        assert faults["engine.mode"]["got"] == '"fast"'
        assert (stage.report["exitCode"], stage.report["reason"]) == (64, "SpecError")
        assert "engine.maxNumSeqs: expected an integer 1..256, got 0" in stage.report["message"]


@pytest.mark.parametrize(
    ("spec", "engine", "code", "complaint"),
    [
        (
            {"parallelism": {"tensor": 2}},
            {"executor": "mp"},
            64,
            "spec.parallelism.tensor: expected 1 in this version, got 2",
        ),
        (
            {},
            {"warmup": [{"width": 60, "height": 64}]},
            64,
            "spec.engine.warmup[0].width: expected a multiple of 8",
        ),
        (
            {},
            {"maxNumSeqs": 4, "maxQueueSize": 2, "warmup": [{"width": 64, "height": 64, "batch": 3}]},
            64,
            "spec.engine.warmup[0].batch: expected at most maxQueueSize 2, got 3",
        ),
        (
            {"model": {"source": {"embedded": "shapes"}, "defaults": {"width": 2048}}},
            {},
            64,
            "spec.model.defaults.width: expected a multiple of 8 from 8 to 256",
        ),
        (
            {"model": {"source": {"embedded": "shapes"}, "pipelineClass": "FluxPipeline"}},
            {},
            65,
            "the stage expects a FluxPipeline, its model_index.json says QwenImagePipeline",
        ),
    ],
    ids=["degree", "warm-up size", "warm-up batch", "default", "class"],
)
def test_what_cannot_be_applied_stops_the_start(
    spec: dict[str, Any], engine: dict[str, Any], code: int, complaint: str, tmp_path: Path
) -> None:
    with StageProcess.pod(config(spec, **engine), tmp_path) as stage:
        assert stage.wait() == code
        assert complaint in stage.report["message"]
        assert "Traceback" not in stage.text


def test_a_pod_with_an_accelerator_that_torch_cannot_use_does_not_run_on_the_cpu(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "OMNISTAGE_ACCELERATOR": "example.com/gpu"}
    with StageProcess.pod(config(executor="mp"), tmp_path, env=env) as stage:
        assert stage.wait() == 64
        assert stage.report["reason"] == "SpecError"
        assert "spec.engine.device: expected cpu, or an image whose torch" in stage.report["message"]
        assert "the pod has example.com/gpu" in stage.report["message"]


def test_an_embedded_model_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    env = {"OMNISTAGE_MODELS": "/nowhere"}
    with StageProcess.pod(config(), tmp_path, env=env) as stage:
        assert stage.wait() == 65
        assert "there is no /nowhere/shapes/checkpoint; set OMNISTAGE_MODELS" in stage.report["message"]


def test_a_broken_model_is_65_and_http_is_up_while_it_loads(tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(CHECKPOINT, broken)
    weights = broken / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    spec = {"model": {"source": {"hostPath": {"path": str(broken)}}}}
    with StageProcess.pod(config(spec), tmp_path) as stage:
        url = url_of(stage)
        answer = httpx.get(f"{url}/startupz")
        assert (answer.status_code, answer.json()["phase"]) == (503, "loading")
        assert httpx.get(f"{url}/livez").status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 503
        refused = httpx.post(f"{url}/v1/images/generations", json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_admitting")
        assert stage.wait() == 65
        assert stage.report["reason"] == "ModelError"
        assert "transformer" in stage.report["message"]
        assert [line["level"] for line in lines(stage) if line["message"] == "engine died"] == ["critical"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_imports_or_loads_is_an_orderly_end(number: signal.Signals, tmp_path: Path) -> None:
    """Case B93."""
    with StageProcess.pod(config(), tmp_path) as stage:
        url_of(stage)
        stage.signal(number)
        assert stage.wait(PROMPT_S) == 0
        assert stage.report == {"exitCode": 0, "reason": "Drained", "message": "", "epoch": 0}


def test_process_1_of_a_container_takes_signals_too(tmp_path: Path) -> None:
    """Case B93."""
    if subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a process namespace")
    with StageProcess.pod(config(), tmp_path, wrapper=IN_A_NAMESPACE) as stage:
        url_of(stage)
        (first,) = psutil.Process(stage.pid).children()
        until(lambda: httpx.get(f"{url_of(stage)}/startupz").json()["phase"] == "loading", "it loads")
        first.send_signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0
