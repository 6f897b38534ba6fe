"""How a rank's process is started: its command line and its environment."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from stage_api.config import StageConfig
from stage_runtime.log import ENV_LEVEL
from stage_runtime.worker.threads import CGROUP, ENVIRONMENT, allowed_cores


class Launch(Struct, frozen=True, kw_only=True):
    """What is the same for all ranks that this process starts."""

    engine: str
    """Address of the engine's socket."""
    config: StageConfig
    epoch: int
    life: str = ""
    """Of the group, where the replica spans pods."""
    keys: Path | None = None
    """Folder of the keys for an engine on another machine."""

    def command(self, rank: int, file_pipe: int | None = None) -> list[str]:
        """Program and arguments of one rank.

        `file_pipe`: descriptor of the file_pipe for its shared memory; None on another machine than the engine's.
        """
        return [
            sys.executable,
            *("-m", "stage_runtime.rank"),
            *("--rank", str(rank)),
            *("--engine", self.engine),
            *("--epoch", str(self.epoch)),
            *("--digest", self.config.topology().digest),
            *("--startup", str(float(self.config.startup.timeout_seconds))),
            *("--parent", str(os.getpid())),
            *(("--life", self.life) if self.life else ()),
            *(("--file-pipe", str(file_pipe)) if file_pipe is not None else ()),
            *(("--keys", str(self.keys)) if self.keys is not None else ()),
        ]


def rank_environ(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """A rank's environment: the cores are shared out among the `ranks` of this pod, unless somebody has decided.

    Ranks log what this process logs: nothing of their start in somebody's own program, all of it in a pod.
    """
    level = logging.getLevelName(logging.getLogger("stage_runtime").getEffectiveLevel())
    return {ENV_LEVEL: level, **environ, **share_of_cores(environ, ranks), "PYTHONUNBUFFERED": "1"}


def share_of_cores(environ: Mapping[str, str], ranks: int, cgroup: Path = CGROUP) -> dict[str, str]:
    """What makes each of `ranks` on this machine keep to its part of the cores; nothing for one, or where it is set."""
    if ranks == 1 or environ.get(ENVIRONMENT):
        return {}
    return {ENVIRONMENT: str(max(1, allowed_cores(cgroup) // ranks))}
