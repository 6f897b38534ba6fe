"""One doubled batch taken apart and put together again: the rows of a call, and of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stage_runtime.batching.spec import LIST, Arguments, BatchSpec, Unmergeable
from stage_runtime.scripts.tensor_tree import Path, rebuild


def take_rows(spec: BatchSpec, arguments: Arguments, rows: int, start: int, stop: int) -> Arguments:
    """The call for rows `start` to `stop` of a call that has `rows`.

    Raises: Unmergeable when it holds anything whose rows are not known.
    """

    def take(value: Any, path: Path) -> Any:
        axis = spec.axes.get(path)
        if isinstance(value, torch.Tensor):
            if axis is None and path not in spec.seen:
                raise Unmergeable(f"{path} holds a tensor that the probe did not see")
            if not isinstance(axis, int):
                return value
            if value.shape[axis] != rows:
                raise Unmergeable(f"{path} has {value.shape[axis]} rows in a call of {rows}")
            return value.narrow(axis, start, stop - start)
        if axis == LIST and value is not None:
            if len(value) != rows:
                raise Unmergeable(f"{path} has {len(value)} elements in a call of {rows} rows")
            return value[start:stop]
        if isinstance(value, dict):
            return {name: take(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return rebuild(value, [take(item, (*path, index)) for index, item in enumerate(value)])
        return value

    return {name: take(value, (name,)) for name, value in arguments.items()}


def join_rows(values: Sequence[Any], rows: int) -> Any:
    """The answer to a whole call, from the answers to its parts, which have `rows` rows each.

    Raises: ValueError when a part has another number of rows.
    """
    first = values[0]
    if isinstance(first, torch.Tensor):
        if any(value.dim() == 0 or value.shape[0] != rows for value in values):
            raise ValueError(f"a call of {rows} rows was answered with {[tuple(v.shape) for v in values]}")
        return torch.cat(list(values))
    if isinstance(first, dict):
        return rebuild(first, {name: join_rows([value[name] for value in values], rows) for name in first})
    if isinstance(first, list) and len(first) == rows:
        return [item for value in values for item in value]
    if isinstance(first, list | tuple):
        return rebuild(first, [join_rows([value[i] for value in values], rows) for i in range(len(first))])
    return first
