"""Answers of modules on the wire: the leaves described as JSON holds them, the tensors laid one after the other.

The containers around the leaves don't travel: the receiver takes them from an answer of its own to a like call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.parallel.collectives import Collectives
from stage_runtime.parallel.lockstep import ALIGNMENT, offsets
from stage_runtime.scripts.tensor_tree import rebuild

Leaf = Sequence[Any]
"""[dtype, [sizes]] of a tensor; [value] of a plain value."""


def flatten(value: Any) -> tuple[list[Leaf], list[torch.Tensor]]:
    """The leaves of an answer, and its tensors, contiguous. Raises: InternalError for what can't travel."""
    leaves: list[Leaf] = []
    found: list[torch.Tensor] = []

    def walk(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            leaves.append((str(item.dtype).removeprefix("torch."), list(item.shape)))
            found.append(item.contiguous())
        elif isinstance(item, dict):
            for inner in item.values():
                walk(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                walk(inner)
        elif item is None or isinstance(item, bool | int | float | str):
            leaves.append((item,))
        else:
            raise InternalError(f"an answer that is exchanged holds a {type(item).__name__}")

    walk(value)
    return leaves, found


class Leaves:
    """Reads the leaves of one answer; `at`: where its tensors begin in the rank's payload, (n,) uint8."""

    __slots__ = ("_payload", "_said", "end")

    def __init__(self, said: Sequence[Leaf], payload: torch.Tensor, at: int) -> None:
        self._payload = payload
        self._said: list[Any] = []
        for leaf in said:
            if len(leaf) == 1:
                self._said.append(leaf)
            else:
                self._said.append((*leaf, at))
                at += _padded(_size(leaf))
        self._said.reverse()
        self.end = at

    def next(self) -> Any:
        """The next leaf; a tensor is part of the payload, with its own version. Raises: InternalError at the end."""
        if not self._said:
            raise InternalError("an answer of another rank has fewer leaves than one of this rank")
        leaf = self._said.pop()
        if len(leaf) == 1:
            return leaf[0]
        dtype, shape, at = getattr(torch, leaf[0]), leaf[1], leaf[2]
        strides = torch.empty(shape, dtype=dtype, device="meta").stride()
        tensor = torch.empty(0, dtype=dtype, device=self._payload.device)
        start = at + self._payload.storage_offset()
        return tensor.set_(self._payload.untyped_storage(), start // dtype.itemsize, shape, strides)

    def check_empty(self) -> None:
        """Raises: InternalError when there are leaves left."""
        if self._said:
            raise InternalError("an answer of another rank has more leaves than one of this rank")


def restored(template: Any, leaves: Leaves) -> Any:
    """An answer with the containers of `template`."""

    def walk(item: Any) -> Any:
        if isinstance(item, dict):
            return rebuild(item, {name: walk(inner) for name, inner in item.items()})
        if isinstance(item, list | tuple):
            return rebuild(item, [walk(inner) for inner in item])
        return leaves.next()

    value = walk(template)
    leaves.check_empty()
    return value


def containers(value: Any) -> Any:
    """The plain containers around the leaves of an answer, as JSON holds them; None for a leaf.

    Raises: InternalError for a container of another kind, which a receiver could not make again.
    """
    if type(value) is dict:
        if not all(isinstance(name, str) for name in value):
            raise InternalError("an answer that is told holds a dict whose keys are no names")
        return {"dict": [[name, containers(inner)] for name, inner in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [containers(inner) for inner in value]}
    if isinstance(value, dict | list | tuple):
        raise InternalError(f"an answer that is told holds a {type(value).__name__}")
    return None


def refilled(told: Any, leaves: Leaves) -> Any:
    """The answer that `containers` described."""

    def fill(one: Any) -> Any:
        if one is None:
            return leaves.next()
        ((kind, inner),) = one.items()
        if kind == "dict":
            return {name: fill(item) for name, item in inner}
        filled = [fill(item) for item in inner]
        return tuple(filled) if kind == "tuple" else filled

    value = fill(told)
    leaves.check_empty()
    return value


def gathered(
    collectives: Collectives, payload: Sequence[torch.Tensor], leaves: Sequence[Sequence[Leaf]]
) -> list[torch.Tensor]:
    """Each rank's payload, gathered on the group's device; `leaves`: those of each rank, from which the sizes follow.

    Produced and consumed: (longest payload,) uint8, tensors at multiples of ALIGNMENT bytes. Nothing is gathered where
    no rank has a tensor.
    """
    sizes = [sum(_padded(_size(leaf)) for leaf in each if len(leaf) > 1) for each in leaves]
    if not any(sizes):
        return [torch.empty(0, dtype=torch.uint8, device=collectives.device) for _ in sizes]
    mine = torch.zeros(max(sizes), dtype=torch.uint8, device=collectives.device)
    for tensor, at in zip(payload, offsets([t.numel() * t.element_size() for t in payload]), strict=False):
        flat = tensor.reshape(-1).view(torch.uint8)
        mine[at : at + flat.numel()] = flat
    everything = collectives.gather(mine)
    return [row[:size].clone() for row, size in zip(everything, sizes, strict=True)]


def _size(leaf: Leaf) -> int:
    numbers = 1
    for size in leaf[1]:
        numbers *= size
    return numbers * int(getattr(torch, leaf[0]).itemsize)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
