"""One rank runs without anything distributed: no group, no rendezvous, no variable of torchrun's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from check_sizes import ROOT

SCRIPT = """
from stage_api.config import StageConfig
from stage_api.manifest import load_manifest
from stage_api.spec import ExecutorKind
from stage_runtime.assemble import build_engine
from stage_runtime.pipelines.served_checkpoint import resolve_model
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import Wishes

(stage,) = load_manifest("examples/shapes.yaml")
config = StageConfig.from_stage(stage)
engine = config.engine.model_copy(update={"executor": ExecutorKind.UNI})
config = config.model_copy(update={"engine": engine})
model = resolve_model(config.model)
engine = build_engine(config, model)
engine.load()
wishes = Wishes(prompt="a red circle", num_inference_steps=2)
(stream,) = engine.add(build_requests(model, wishes, request_id="a"))
while not stream.ended:
    engine.tick()
picture = stream.result().output

import torch

assert not torch.distributed.is_initialized()
print(*picture.shape)
"""


@pytest.mark.invariant("PARALLEL-INV-004")
def test_one_rank_draws_without_initialising_anything_distributed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={
            "PYTHONPATH": f"{ROOT / 'crds'}:{ROOT / 'worker'}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["64", "64", "3"]
