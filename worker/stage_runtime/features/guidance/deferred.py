"""Answers that are not there yet: a pipeline that makes two calls before it looks at either has both pending at once.

A deferred call returns stand-ins of its tensors at once. The first use of one parks the script until all its deferred
calls are answered. What a stand-in is handed to sees the real tensor, so nothing but the moment of the call changes;
arguments that a pipeline edits in between are noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import torch

from stage_runtime.core.errors import RequestFailed
from stage_runtime.scripts.script import Call, Script, Together
from stage_runtime.scripts.tensor_tree import Path, rebuild, tensors

MOST: Final = 4
"""Calls pending at once: guidance makes two or three, and each holds its arguments."""

Templates = dict[Hashable, Any]
"""Kind of call → the structure of its answer, True at each tensor. None: not of tensors alone, never deferred."""


class _Pending:
    """One deferred call, and its answer once it is there."""

    __slots__ = ("call", "deferral", "done", "error", "value", "versions")

    def __init__(self, deferral: DeferredCalls, call: Call) -> None:
        self.deferral, self.call = deferral, call
        self.versions = [(tensor, tensor._version) for _, tensor in tensors((call.args, call.kwargs))]
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False

    def get(self) -> Any:
        if not self.done:
            self.deferral.settle()
        if self.error is not None:
            raise self.error
        return self.value


class DeferredCalls:
    """Of one script. `kind(call)` tells calls whose answers have the same structure; None: never deferred."""

    __slots__ = ("_kind", "_queue", "_script", "_templates")

    def __init__(self, script: Script, kind: Callable[[Call], Hashable | None], templates: Templates) -> None:
        self._script, self._kind, self._templates = script, kind, templates
        self._queue: list[_Pending] = []

    def answer(self, call: Call) -> Any:
        """Called from inside the script: stand-ins for the answer to `call`, or the answer itself."""
        kind = self._kind(call)
        template = self._templates.get(kind) if kind is not None else None
        # Fresh containers either way: pipelines edit those they passed, while the call waits.
        if template is None:
            self.settle()
            call.args, call.kwargs = real(call.args), real(call.kwargs)
            value = self._script.park(call)
            if kind is not None and kind not in self._templates:
                self._templates[kind] = _template(value)
            return value
        call.args, call.kwargs = real(call.args), real(call.kwargs)
        pending = _Pending(self, call)
        self._queue.append(pending)
        answer = _stand_ins(template, pending, ())
        if len(self._queue) == MOST:
            self.settle()
        return answer

    def settle(self) -> None:
        """Park until all deferred calls are answered. Raises: what one of them failed with."""
        queue, self._queue = self._queue, []
        if not queue:
            return
        try:
            if any(tensor._version != version for each in queue for tensor, version in each.versions):
                raise RequestFailed("the pipeline edited an argument of a call that had not been made yet")
            calls = [each.call for each in queue]
            values = [self._script.park(calls[0])] if len(calls) == 1 else self._script.park(Together(calls))
        except BaseException as error:
            for each in queue:
                each.done, each.error = True, error
            raise
        for each, value in zip(queue, values, strict=True):
            each.done, each.value = True, value

    def real(self, tree: Any) -> Any:
        """`tree` with no stand-in in it."""
        self.settle()
        return real(tree)


def _template(value: Any) -> Any:
    """True for each tensor, the containers around them; None when there is anything else but None in it."""
    try:
        return _structure(value)
    except TypeError:
        return None


def _structure(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return True
    if value is None:
        return None
    if isinstance(value, dict):
        return rebuild(value, {name: _structure(item) for name, item in value.items()})
    if isinstance(value, tuple):
        return rebuild(value, [_structure(item) for item in value])
    raise TypeError(type(value).__name__)  # a list has a length that may be another the next time


def _stand_ins(template: Any, pending: _Pending, path: Path) -> Any:
    if template is True:
        return StandIn(pending, path)
    if isinstance(template, dict):
        items = {name: _stand_ins(item, pending, (*path, name)) for name, item in template.items()}
        return rebuild(template, items)
    if isinstance(template, tuple):
        return rebuild(template, [_stand_ins(t, pending, (*path, i)) for i, t in enumerate(template)])
    return None


def real(tree: Any) -> Any:
    """A copy of `tree`, its containers new and each stand-in replaced by its tensor."""
    if type(tree) is StandIn:
        return _tensor(tree)
    if type(tree) is dict:
        return {name: real(value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(real(value) for value in tree)
    return tree


def _tensor(stand_in: StandIn) -> Any:
    value = object.__getattribute__(stand_in, "_pending").get()
    for step in object.__getattribute__(stand_in, "_path"):
        value = value[step]
    return value


def _is_view(index: Any) -> bool:
    """True for an index that gives a view, whatever the shape: it can be taken later as well."""
    parts = index if type(index) is tuple else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)


_OWN: Final = ("__class__", "__torch_function__")
"""Asked of the instance, and answered by the stand-in itself."""


class StandIn:
    """Stands for one tensor of an answer that is not there yet. It says it is a tensor; any use of it waits."""

    __slots__ = ("_path", "_pending")

    def __init__(self, pending: _Pending, path: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_pending", pending)
        object.__setattr__(self, "_path", path)

    @property
    def __class__(self) -> Any:
        return torch.Tensor

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"a stand-in can't become a {kind.__name__}")

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            return object.__getattribute__(self, name)
        return getattr(_tensor(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_tensor(self), name, value)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*real(args), **real(kwargs or {}))

    def __getitem__(self, index: Any) -> Any:
        pending, path = object.__getattribute__(self, "_pending"), object.__getattribute__(self, "_path")
        if not pending.done and _is_view(index):
            return StandIn(pending, (*path, index))
        return _tensor(self)[real(index)]

    __hash__ = object.__hash__


def _forwarding(name: str) -> Callable[..., Any]:
    def forward(self: StandIn, *args: Any) -> Any:
        return getattr(_tensor(self), name)(*real(args))

    return forward


_OPERATORS: Final = """
    add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow rpow ipow
    matmul rmatmul and rand iand or ror ior xor rxor ixor lshift rshift neg pos abs invert
    eq ne lt le gt ge bool int float complex index len iter contains reversed setitem repr str format array
    deepcopy reduce_ex dlpack dlpack_device
"""
for _name in _OPERATORS.split():
    if hasattr(torch.Tensor, f"__{_name}__"):
        setattr(StandIn, f"__{_name}__", _forwarding(f"__{_name}__"))
