"""A replica of two pods: its config, its keys, and the environment of each pod."""

from __future__ import annotations

from pathlib import Path

from stage_api import names
from stage_api.config import StageConfig
from stage_api.manifest import parse_manifest
from stage_runtime.ipc.keys import generate

MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: shapes}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, device: cpu, mode: {mode}, executor: mp, maxNumSeqs: 2}}
  parallelism: {{cfg: {cfg}, data: {data}}}
  topology: {{ranksPerPod: 1}}
  startup: {{timeoutSeconds: {startup_s}}}
  drain: {{admitSeconds: 0, timeoutSeconds: 20}}
"""


def two_pods(*, cfg: int = 1, data: int = 1, mode: str = "step", startup_s: int = 90) -> StageConfig:
    """A stage of the shapes model with one rank in each of two pods; `cfg` or `data` is 2."""
    (stage,) = parse_manifest(MANIFEST.format(mode=mode, cfg=cfg, data=data, startup_s=startup_s))
    config = StageConfig.from_stage(stage)
    assert config.topology().pods == 2
    return config


def key_folder(folder: Path) -> Path:
    """A new folder with new keys."""
    folder.mkdir()
    for name, text in generate().items():
        (folder / name).write_text(text)
    return folder


def pod_environ(
    ordinal: int, *, master: str, keys: Path, epoch: int, port: int | None = None
) -> dict[str, str]:
    """What tells a pod which one it is. `port`: where the engine listens for ranks; None: where it always does."""
    return {
        names.ENV_GROUP_RANK: str(ordinal),
        names.ENV_MASTER_ADDR: master,
        names.ENV_KEYS: str(keys),
        names.ENV_EPOCH: str(epoch),
        **({names.ENV_RANKS_PORT: str(port)} if port is not None else {}),
    }
