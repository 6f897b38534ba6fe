"""Walk over what pipelines hand to modules and get back: tensors inside lists, tuples, dicts and output dataclasses."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

Path = tuple[str | int, ...]


class Unavailable:
    """Stands where a merged result held something that can't be divided among requests; any use is an error.

    Text encoders answer with a key/value cache beside the hidden states; no pipeline reads it, and one that does
    must hear of it instead of computing with a neighbour's.
    """

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        what = object.__getattribute__(self, "_what")
        raise RuntimeError(
            f"{what} can't be divided among the requests of a merged call (attribute {name!r} was read)"
        )


def rebuild(like: Any, items: Any) -> Any:
    """A container of the type of `like` that holds `items`."""
    kind: Any = type(like)
    if kind is tuple or kind is list or kind is dict:
        return kind(items)
    if isinstance(like, OrderedDict):
        # diffusers' and transformers' outputs: ordered dicts whose items are attributes too. Their constructors are
        # slow (40 µs) and check what was checked already.
        own = kind.__new__(kind)
        for name, value in items.items():
            OrderedDict.__setitem__(own, name, value)
            own.__dict__[name] = value
        return own
    if isinstance(like, dict):
        return kind(**items)
    return kind(*items) if hasattr(like, "_fields") else kind(items)


def map_tensors(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`tree` with each tensor replaced by `change(tensor)`; other leaves stay as they are."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return rebuild(tree, {name: map_tensors(value, change) for name, value in tree.items()})
    if isinstance(tree, list | tuple):
        return rebuild(tree, [map_tensors(value, change) for value in tree])
    return tree


def tensors(tree: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor in `tree` with its path, in order."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from tensors(value, (*path, name))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from tensors(value, (*path, index))


def is_plain(tree: Any) -> bool:
    """True when `tree` holds tensors and plain values only, so that every tensor in it can be reached."""
    if isinstance(tree, dict):
        return all(is_plain(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return all(is_plain(value) for value in tree)
    return tree is None or isinstance(tree, torch.Tensor | bool | int | float | str)


def clone(tree: Any) -> Any:
    """`tree` with its own copy of each tensor."""
    return map_tensors(tree, lambda tensor: tensor.detach().clone())


class Blank:
    """The shape of a result that is not kept: what a replay answers with for a call already made."""

    __slots__ = ("device", "dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device

    def filled(self) -> torch.Tensor:
        """Zeros of that shape."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def blanks(tree: Any) -> Any:
    """`tree` with each tensor replaced by its `Blank`; what is neither container nor plain value is dropped."""
    if isinstance(tree, torch.Tensor):
        return Blank(tree)
    if isinstance(tree, dict):
        return rebuild(tree, {name: blanks(value) for name, value in tree.items()})
    if isinstance(tree, list | tuple):
        return rebuild(tree, [blanks(value) for value in tree])
    return (
        tree
        if tree is None or isinstance(tree, bool | int | float | str)
        else Unavailable(type(tree).__name__)
    )


def fill(tree: Any) -> Any:
    """Zeros wherever `tree` holds a `Blank`."""
    if isinstance(tree, Blank):
        return tree.filled()
    if isinstance(tree, dict):
        return rebuild(tree, {name: fill(value) for name, value in tree.items()})
    if isinstance(tree, list | tuple):
        return rebuild(tree, [fill(value) for value in tree])
    return tree


def split_rows(tree: Any, rows: list[int]) -> list[Any]:
    """A merged result divided among its members: dimension 0 of tensors, or lists with an element a row.

    `rows` are the members' row counts. Raises ValueError when something has another number of rows.
    """
    total = sum(rows)
    if isinstance(tree, torch.Tensor):
        if tree.dim() == 0 or tree.shape[0] != total:
            raise ValueError(
                f"the merged call returned a tensor of shape {tuple(tree.shape)} for {total} rows"
            )
        return list(torch.split(tree, rows, 0))
    if isinstance(tree, dict):
        parts = {name: split_rows(value, rows) for name, value in tree.items()}
        return [rebuild(tree, {name: part[i] for name, part in parts.items()}) for i in range(len(rows))]
    if isinstance(tree, list) and len(tree) == total:
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return [tree[end - count : end] for end, count in zip(ends, rows, strict=True)]
    if isinstance(tree, list | tuple):
        columns = [split_rows(value, rows) for value in tree]
        return [rebuild(tree, [column[i] for column in columns]) for i in range(len(rows))]
    if tree is None or isinstance(tree, bool | int | float | str):
        return [tree] * len(rows)
    return [Unavailable(type(tree).__name__)] * len(rows)


def relative_error(got: Any, want: Any) -> float:
    """Largest |got − want| over largest |want|, over all tensors; infinity where shapes or structure differ."""
    left, right = list(tensors(got)), list(tensors(want))
    if [path for path, _ in left] != [path for path, _ in right]:
        return float("inf")
    worst = 0.0
    for (_, a), (_, b) in zip(left, right, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel() == 0:
            continue
        a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (a, b))
        finite = b[b.isfinite()] if b.is_floating_point() else torch.ones(1)
        scale = finite.abs().max().item() if finite.numel() else 1.0
        alike = (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
        gap = (a.to(torch.float64) - b.to(torch.float64)).masked_fill(alike, 0.0).abs().max().item()
        if math.isnan(gap):
            return float("inf")
        worst = max(worst, gap / max(scale, 1e-12))
    return worst
