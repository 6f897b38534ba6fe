"""A worker extension for stages of several processes: only names and tensors, so that any rank can import it."""

from __future__ import annotations

import torch

from stage_runtime.worker.extension import WorkerView


class Tools:
    """What a test calls on every rank."""

    def __init__(self, view: WorkerView) -> None:
        self._view = view

    def rank(self) -> int:
        """Which one."""
        return self._view.rank

    def doubled(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """Twice as much, in the same dtype."""
        return {"twice": tensor * 2}
