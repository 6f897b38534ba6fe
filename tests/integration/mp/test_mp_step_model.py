"""A model outside diffusers on a rank of its own: the same bytes as in the engine's process, packed on the rank."""

from __future__ import annotations

import pytest

from stage_api.config import StageConfig
from stage_api.manifest import parse_manifest
from support.mp_stage import PATIENCE_S, serving
from support.step_models import digit

MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: digits}}
spec:
  model: {{source: {{embedded: digits}}}}
  engine: {{dtype: float32, device: cpu, mode: {mode}, executor: {executor}, maxNumSeqs: 2, batchInvariant: true}}
  startup: {{timeoutSeconds: 90}}
"""


def drawn(mode: str, executor: str) -> list[bytes]:
    """Two pictures at once, of unlike steps, from an engine that keeps nothing of them."""
    (stage,) = parse_manifest(MANIFEST.format(mode=mode, executor=executor))
    with serving(StageConfig.from_stage(stage)) as engine:
        streams = engine.add([digit("a", "a red 7", seed=1), digit("b", "blue", seed=2, steps=6)])
        pictures = [stream.result(PATIENCE_S).output.data for stream in streams]
        assert not any(engine.outstanding().result(PATIENCE_S).values())
    return pictures


@pytest.mark.parametrize("mode", ["step", "request"])
def test_pictures_are_the_same_to_the_last_bit_as_in_one_process(mode: str) -> None:
    assert drawn(mode, "mp") == drawn(mode, "uni")
