"""Muon for stacks of matrices and for convolution kernels, and the schedules of the learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from shapes_model.ranks import Ranks

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Schedule:
    """A multiplier of the learning rate, by the step alone: warm up, hold, then a cosine down to `floor`."""

    warm_up: int
    hold_until: int
    steps: int
    floor: float

    def at(self, step: int) -> float:
        """For steps 1 to `steps`."""
        fallen = max(0, step - self.hold_until) / max(1, self.steps - self.hold_until)
        return min(1.0, step / self.warm_up) * (
            self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * fallen))
        )


def orthogonalise(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Newton-Schulz: about U V^T of each of the matrices [n, rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x.contiguous()
    for _ in range(iterations):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Kernels [out, in, time, h, w] are trained on single frames, so only the last tap in time is live."""
    return tensor[:, :, -1] if tensor.ndim == 5 else tensor


@dataclass
class _Stack:
    """Parameters of one matrix shape. This rank orthogonalises `mine`; `momentum` is [len(mine), rows, columns]."""

    shape: tuple[int, int]
    parameters: list[torch.nn.Parameter]
    mine: list[torch.nn.Parameter]
    momentum: torch.Tensor


class Muon:
    """Update = -rate * 0.2 sqrt(max(rows, columns)) * orthogonalise(Nesterov momentum): the size of an AdamW step.

    Matrices of equal shape go through one batched product. With `ranks` each process does its share of every stack
    and the results are gathered; without, every process does all of it.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        rate: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
        ranks: Ranks | None = None,
    ) -> None:
        self.rate, self.momentum, self.weight_decay, self.dtype = rate, momentum, weight_decay, dtype
        self.ranks = ranks or Ranks(rank=0, world=1)
        by_shape: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            live = as_matrix(parameter)
            by_shape[live.shape[0], live[0].numel()].append(parameter)
        self.stacks = [self._stack(shape, members) for shape, members in by_shape.items()]

    def _stack(self, shape: tuple[int, int], members: list[torch.nn.Parameter]) -> _Stack:
        if len(members) % self.ranks.world:
            raise ValueError(
                f"{len(members)} matrices of shape {shape} do not divide by {self.ranks.world} ranks"
            )
        share = len(members) // self.ranks.world
        mine = members[self.ranks.rank * share : (self.ranks.rank + 1) * share]
        return _Stack(shape, members, mine, torch.zeros(share, *shape))

    def _direction(self, stack: _Stack) -> torch.Tensor:
        """Parameters that the loss never sees (the last block's text output) have no gradient, which counts as zero."""
        live = [as_matrix(torch.zeros_like(p) if p.grad is None else p.grad) for p in stack.mine]
        gradients = torch.stack([gradient.reshape(stack.shape) for gradient in live])
        stack.momentum.lerp_(gradients, 1 - self.momentum)
        ahead = gradients.lerp(stack.momentum, self.momentum)
        unit = ahead / (ahead.norm(dim=(1, 2), keepdim=True) + 1e-7)
        return orthogonalise(unit.to(self.dtype)).contiguous()

    @torch.no_grad()
    def step(self, multiplier: float) -> None:
        rate = self.rate * multiplier
        shares = self.ranks.gather(torch.cat([self._direction(stack).reshape(-1) for stack in self.stacks]))
        start = 0
        for stack in self.stacks:
            end = start + stack.momentum.numel()
            whole = torch.cat([share[start:end] for share in shares]).float().view(-1, *stack.shape)
            updates = whole * (0.2 * max(stack.shape) ** 0.5 * rate)
            for parameter, update in zip(stack.parameters, updates, strict=True):
                live = as_matrix(parameter)
                live.mul_(1 - rate * self.weight_decay).sub_(update.reshape(live.shape))
            start = end

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"momentum": [stack.momentum for stack in self.stacks]}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for stack, momentum in zip(self.stacks, state["momentum"], strict=True):
            stack.momentum.copy_(momentum)
