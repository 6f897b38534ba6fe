"""The processes that train together: one thread each, gloo between them, everything random a function of the step."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(hours=2)
"""How long a rank waits for another, which may be stopped for a while."""


@dataclass(frozen=True)
class Ranks:
    rank: int
    world: int

    @classmethod
    def join(cls) -> Ranks:
        """Read RANK and WORLD_SIZE (as torchrun sets them; alone without) and meet the others."""
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        ranks = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if ranks.world > 1:
            dist.init_process_group("gloo", timeout=PATIENCE)
        return ranks

    @property
    def first(self) -> bool:
        return self.rank == 0

    def draw(self, purpose: str, seed: int, step: int = 0) -> random.Random:
        """A fresh source of chance for this rank at this step, so that a resumed run needs no generator state."""
        return random.Random(f"{purpose}/{seed}/{self.rank}/{step}")

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its mean over the ranks, in one exchange."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor of this shape, in rank order."""
        if self.world == 1:
            return [mine]
        shares = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather([share.view(torch.uint8) for share in shares], mine.view(torch.uint8))
        return shares

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


def torch_generator(chance: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(chance.getrandbits(63))


def gradients_of(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
