"""Engines whose ranks are real processes, on the shapes model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stage_api.config import StageConfig
from stage_api.manifest import parse_manifest
from stage_runtime.assemble import build_engine
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.executor.mp import MpExecutor
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.pipelines.served_checkpoint import resolve_model

READY_S = 100.0
"""For a start, the import of torch in each rank included, on a busy machine."""
PATIENCE_S = 60.0
"""For whatever has to come of a running engine."""

MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: shapes}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, device: cpu, mode: {mode}, executor: {executor}, maxNumSeqs: {slots}}}
  parallelism: {{cfg: {cfg}, data: {data}}}
  startup: {{timeoutSeconds: 90}}
"""


def a_config(
    mode: str = "step", *, executor: str = "mp", cfg: int = 1, data: int = 1, slots: int = 4
) -> StageConfig:
    """A stage of the shapes model."""
    text = MANIFEST.format(mode=mode, executor=executor, cfg=cfg, data=data, slots=slots)
    (stage,) = parse_manifest(text)
    return StageConfig.from_stage(stage)


@contextmanager
def serving(config: StageConfig) -> Iterator[Engine]:
    """An engine between ready and closed."""
    engine = build_engine(config, resolve_model(config.model))
    engine.start()
    try:
        engine.wait_ready(READY_S)
        yield engine
    finally:
        engine.close()


def executor_of(engine: Engine) -> MpExecutor:
    """Its executor, for a test that has to find its processes."""
    executor = engine._executor
    assert isinstance(executor, MpExecutor)
    return executor


def a_drawing(
    request_id: str,
    *,
    steps: int = 4,
    seed: int | None = 7,
    prompt: str = "a red circle",
    previews: int = 0,
    guidance: float | None = None,
    side: int | None = None,
) -> Request:
    """One picture to draw. `side`: its width and height in pixels; None: the model's own."""
    model = resolve_model(a_config().model)
    wishes = Wishes(
        prompt=prompt,
        num_inference_steps=steps,
        seed=seed,
        partial_images=previews,
        guidance_scale=guidance,
        width=side,
        height=side,
    )
    (request,) = build_requests(model, wishes, request_id=request_id)
    return msgspec.structs.replace(request, request_id=request_id)
