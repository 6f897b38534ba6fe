"""Saves a training run at a step and takes it up again, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch

from shapes_model.ranks import Ranks


class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Snapshots:
    """One file a rank and step in `folder`; older steps are deleted once every rank has written the newer one."""

    def __init__(self, folder: Path, ranks: Ranks, parts: dict[str, Stateful]) -> None:
        self.folder, self.ranks, self.parts = folder, ranks, parts
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, step: int, rank: int) -> Path:
        return self.folder / f"step{step:06d}.rank{rank}.pt"

    def save(self, step: int) -> None:
        path = self._path(step, self.ranks.rank)
        unfinished = path.with_suffix(".part")
        torch.save({name: part.state_dict() for name, part in self.parts.items()}, unfinished)
        os.replace(unfinished, path)
        self.ranks.barrier()
        for old in self.folder.glob(f"step*.rank{self.ranks.rank}.pt"):
            if old != path:
                old.unlink()

    def restore(self) -> int:
        """Load the newest step that every rank has; the step, or 0 if there is none."""
        steps = {int(path.name[4:10]) for path in self.folder.glob("step*.rank0.pt")}
        whole = [s for s in steps if all(self._path(s, rank).exists() for rank in range(self.ranks.world))]
        if not whole:
            return 0
        step = max(whole)
        state = torch.load(self._path(step, self.ranks.rank), weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return step
