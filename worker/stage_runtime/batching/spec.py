"""How calls of one component scale with the number of rows, and how calls of several requests become one.

Nothing here knows a model. The probe compares a call made for one row with the same call made for two: dimensions
that doubled are batch axes, lists that doubled hold an element a row, everything else is shared by all rows.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import pad

from stage_runtime.scripts.tensor_tree import Path, map_tensors, split_rows, tensors

LIST: Final = "list"
"""The axis of a list that has one element a row."""

MASK_OF: Final[dict[str, tuple[str, ...]]] = {
    "encoder_hidden_states": ("encoder_hidden_states_mask", "encoder_attention_mask"),
    "input_ids": ("attention_mask",),
}
"""Arguments whose dimension 1 is text length, and the names under which modules take a mask for it."""

Arguments = dict[str, Any]


class Unmergeable(Exception):
    """These calls, or this one, must run alone; the message says why."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Text of unequal length is padded at its end and masked."""

    argument: str
    mask: str
    mask_dtype: torch.dtype
    crops: tuple[tuple[Path, int], ...] = ()
    """Leaves of the result that grow with the text, with the dimension to crop."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What the probe found for one method of one component."""

    parameters: tuple[str, ...]
    axes: Mapping[Path, int | str]
    """Batch axis of each argument path that scales: a dimension, or LIST."""
    seen: frozenset[Path]
    """Paths that held a tensor in both probes. A tensor elsewhere has unknown meaning: it runs alone."""
    padding: Padding | None = None
    ragged_lists: bool = False
    """True when the module takes lists whose elements differ in shape."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Arguments by name."""
        if not args:
            return kwargs
        return {**dict(zip(self.parameters, args, strict=False)), **kwargs}

    def rows(self, arguments: Arguments) -> int:
        """How many rows a call has. Raises Unmergeable when nothing in it scales."""
        for path, axis in self.axes.items():
            value: Any = arguments.get(str(path[0]))
            for step in path[1:]:
                value = None if value is None else value[step]
            if value is not None:
                return len(value) if axis == LIST else int(value.shape[axis])
        raise Unmergeable("nothing in the call grows with the number of requests")

    def key(self, arguments: Arguments, shared: SharedTensors) -> Hashable:
        """Calls with equal keys can be merged. Raises Unmergeable for a call that no spec covers."""
        parts: list[Hashable] = []
        for name, value in arguments.items():
            if self.padding is not None and name == self.padding.mask:
                continue
            if value is None or isinstance(value, bool):
                parts.append((name, value))
            else:
                self._describe(value, (name,), parts, shared)
        return tuple(parts)

    def _describe(self, value: Any, path: Path, parts: list[Hashable], shared: SharedTensors) -> None:
        axis = self.axes.get(path)
        if isinstance(value, torch.Tensor):
            parts.append((path, *self._describe_tensor(value, path, axis, shared)))
        elif axis == LIST:
            parts.append((path, frozenset(_element(item, self.ragged_lists) for item in value)))
        elif isinstance(value, dict):
            for name, item in value.items():
                self._describe(item, (*path, name), parts, shared)
        elif isinstance(value, list | tuple):
            parts.append((path, type(value), len(value)))
            for index, item in enumerate(value):
                self._describe(item, (*path, index), parts, shared)
        elif value is None or isinstance(value, int | float | str | torch.dtype):
            parts.append((path, value))
        else:
            raise Unmergeable(f"{_name(path)} holds a {type(value).__name__}")

    def _describe_tensor(
        self, value: torch.Tensor, path: Path, axis: int | str | None, shared: SharedTensors
    ) -> tuple[Hashable, ...]:
        if isinstance(axis, int):
            shape = list(value.shape)
            shape[axis] = -1
            if self.padding is not None and path == (self.padding.argument,):
                shape[1] = -1
            return tuple(shape), value.dtype, value.device
        if path not in self.seen:
            raise Unmergeable(f"{_name(path)} holds a tensor that the probe did not see")
        if value.dim() <= 1 and value.numel() == 1:
            return "one", value.dtype, value.device
        return "same", shared.token(value)

    def merge(self, calls: list[Arguments], rows: list[int]) -> tuple[Arguments, int | None]:
        """One call for all of them, and the text length that it was padded to (None: not padded).

        The calls have equal keys. Raises Unmergeable when they turn out not to fit.
        """
        padded = None
        if self.padding is not None:
            calls, padded = self._padded(calls, self.padding)
        return {name: self._merge([call[name] for call in calls], (name,), rows) for name in calls[0]}, padded

    def _merge(self, values: list[Any], path: Path, rows: list[int]) -> Any:
        first, axis = values[0], self.axes.get(path)
        if self.padding is not None and path == (self.padding.mask,):
            axis = 0
        if isinstance(first, torch.Tensor):
            if isinstance(axis, int):
                return torch.cat(values, dim=axis)
            if first.dim() <= 1 and first.numel() == 1 and any(value is not first for value in values):
                return torch.cat([v.reshape(1).expand(n) for v, n in zip(values, rows, strict=True)])
            return first
        if axis == LIST:
            return type(first)(itertools.chain.from_iterable(values))
        if isinstance(first, dict):
            return {
                name: self._merge([value[name] for value in values], (*path, name), rows) for name in first
            }
        if isinstance(first, list | tuple):
            return type(first)(
                self._merge([v[i] for v in values], (*path, i), rows) for i in range(len(first))
            )
        return first

    def _padded(self, calls: list[Arguments], padding: Padding) -> tuple[list[Arguments], int | None]:
        """The calls with texts of one length, and that length; untouched where it is one already."""
        texts = [call[padding.argument] for call in calls]
        masks = [call.get(padding.mask) for call in calls]
        longest = max(text.shape[1] for text in texts)
        if all(mask is None for mask in masks) and all(text.shape[1] == longest for text in texts):
            return calls, None
        padded = [
            {
                **call,
                padding.argument: _extend(text, longest),
                padding.mask: _mask(text, mask, longest, padding.mask_dtype),
            }
            for call, text, mask in zip(calls, texts, masks, strict=True)
        ]
        return padded, longest

    def split(self, result: Any, rows: list[int], calls: list[Arguments], padded: int | None) -> list[Any]:
        """Each member's part of the merged `result`, in the members' order, padding cropped again."""
        parts = split_rows(result, rows)
        if padded is None or self.padding is None or not self.padding.crops:
            return parts
        lengths = [call[self.padding.argument].shape[1] for call in calls]
        return [self._cropped(part, length) for part, length in zip(parts, lengths, strict=True)]

    def _cropped(self, part: Any, length: int) -> Any:
        assert self.padding is not None
        dims = dict(self.padding.crops)
        paths = iter([path for path, _ in tensors(part)])

        def crop(tensor: torch.Tensor) -> torch.Tensor:
            dim = dims.get(next(paths))
            return tensor if dim is None else tensor.narrow(dim, 0, length)

        return map_tensors(part, crop)


def _extend(text: torch.Tensor, length: int) -> torch.Tensor:
    missing = length - text.shape[1]
    return text if missing == 0 else pad(text, (*[0, 0] * (text.dim() - 2), 0, missing))


def _mask(text: torch.Tensor, mask: torch.Tensor | None, length: int, dtype: torch.dtype) -> torch.Tensor:
    if mask is None:
        mask = torch.ones(text.shape[:2], dtype=dtype, device=text.device)
    return _extend(mask, length)


def _element(item: Any, ragged: bool) -> Hashable:
    """What must agree among the elements of lists that are joined."""
    if isinstance(item, torch.Tensor):
        return () if ragged else tuple(item.shape), item.dtype, item.device
    return repr(item)


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def padding_for(parameters: tuple[str, ...], axes: Mapping[Path, int | str]) -> tuple[str, str] | None:
    """The text argument and its mask, where a module has both and the text scales with the batch."""
    for argument, masks in MASK_OF.items():
        if axes.get((argument,)) == 0:
            for mask in masks:
                if mask in parameters:
                    return argument, mask
    return None


def derive_axes(one: Any, two: Any) -> tuple[dict[Path, int | str], set[Path], set[Path]]:
    """Batch axes by comparing a call for one row with the same call for two: axes, tensor paths, unlike paths.

    Raises Unmergeable when something changed by another factor than 1 or 2.
    """
    axes: dict[Path, int | str] = {}
    seen: set[Path] = set()
    unlike: set[Path] = set()

    def walk(left: Any, right: Any, path: Path) -> None:
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            seen.add(path)
            axis = _doubled(left, right, path)
            if axis is not None:
                axes[path] = axis
        elif isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            unlike.add(path)
        elif isinstance(left, dict) and isinstance(right, dict):
            for name in left.keys() & right.keys():
                walk(left[name], right[name], (*path, name))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if left and len(right) == 2 * len(left):
                axes[path] = LIST
            else:
                for index, (a, b) in enumerate(zip(left, right, strict=False)):
                    walk(a, b, (*path, index))

    walk(one, two, ())
    return axes, seen, unlike


def _doubled(left: torch.Tensor, right: torch.Tensor, path: Path) -> int | None:
    if left.dim() != right.dim():
        raise Unmergeable(f"{_name(path)} has {left.dim()} dimensions for one row and {right.dim()} for two")
    changed = [dim for dim in range(left.dim()) if left.shape[dim] != right.shape[dim]]
    if not changed:
        return None
    if len(changed) > 1 or right.shape[changed[0]] != 2 * left.shape[changed[0]]:
        raise Unmergeable(
            f"{_name(path)} is {tuple(left.shape)} for one row and {tuple(right.shape)} for two"
        )
    return changed[0]


class _Seen(NamedTuple):
    """A tensor as it was when it got its token."""

    reference: weakref.ref[torch.Tensor]
    version: int
    token: int

    def tensor(self) -> torch.Tensor | None:
        """The tensor, if it lives and was not written to."""
        tensor = self.reference()
        return tensor if tensor is not None and tensor._version == self.version else None


@dataclass(slots=True)
class SharedTensors:
    """Tells which tensors hold the same values, comparing each pair once: comparing waits for the device.

    A token stands for a value. A tensor keeps its token while it lives and is not written to.
    """

    _by_id: dict[int, _Seen] = field(default_factory=dict)
    _by_kind: dict[Hashable, list[_Seen]] = field(default_factory=dict)
    _next: itertools.count[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._by_id) + len(self._by_kind)

    def token(self, tensor: torch.Tensor) -> int:
        """Equal for tensors of equal shape, dtype, device and content."""
        seen = self._by_id.get(id(tensor))
        if seen is not None and seen.tensor() is tensor:
            return seen.token
        kind = (tuple(tensor.shape), tensor.dtype, tensor.device)
        alive = [seen for seen in self._by_kind.get(kind, []) if seen.tensor() is not None]
        equal = (
            seen.token
            for seen in alive
            if (other := seen.tensor()) is not None and torch.equal(other, tensor)
        )
        token = next(equal, None)
        if token is None:
            token = next(self._next)
        identity = id(tensor)
        seen = _Seen(weakref.ref(tensor, lambda _: self._drop(identity, kind)), tensor._version, token)
        self._by_id[identity] = seen
        self._by_kind[kind] = [*alive, seen]
        return token

    def _drop(self, identity: int, kind: Hashable) -> None:
        """A tensor is gone, and with the last of its kind the kind."""
        self._by_id.pop(identity, None)
        if not any(seen.tensor() is not None for seen in self._by_kind.get(kind, ())):
            self._by_kind.pop(kind, None)
