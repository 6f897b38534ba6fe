"""The in-process target: groups calls that fit together, runs the real module once a group, gives each its rows.

A call alone runs with exactly the arguments its pipeline made, so one request is bitwise equal to plain diffusers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from stage_runtime.batching.spec import BatchSpec, SharedTensors, Unmergeable
from stage_runtime.core.error_codec import words_of
from stage_runtime.scripts.script import Call
from stage_runtime.scripts.target import Answer
from stage_runtime.scripts.tensor_tree import map_tensors

log = logging.getLogger(__name__)

COPIED_NUMBERS: Final = 4096
"""Up to so many numbers a copy of a tensor takes less time than a new tensor on its memory."""

Method = tuple[str, str]
"""Component and method, e.g. ("vae", "decode")."""


class CallHook(Protocol):
    """Something that must hold while one request's call runs alone: its processors, its cache context."""

    def needs_solo(self, call: Call) -> bool:
        """True when `call` may not be merged with another request's."""

    def around(self, call: Call, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Entered around a call that runs alone."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""


@dataclass(slots=True)
class CallCounts:
    """Calls made, by component: for progress of tests and metrics."""

    calls: dict[str, int] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, component: str, members: int, seconds: float) -> None:
        """One run of a real module for `members` calls."""
        self.calls[component] = self.calls.get(component, 0) + 1
        self.rows[component] = self.rows.get(component, 0) + members
        self.seconds[component] = self.seconds.get(component, 0.0) + seconds
        if members > 1:
            self.merged[component] = self.merged.get(component, 0) + 1


@dataclass(slots=True)
class Batcher:
    """`on_fault(error)` is told of every exception a module raised; it raises when the device itself is lost."""

    modules: Mapping[str, torch.nn.Module]
    specs: Mapping[Method, BatchSpec] = field(default_factory=dict)
    plain: Collection[Method] = ()
    """Methods that answer with nothing but tensors and plain values: they run in inference mode, and each tensor is
    made a normal one again. In what others answer with, tensors would stay such that pipelines can't edit them."""
    hooks: Sequence[CallHook] = ()
    on_fault: Callable[[Exception], None] = lambda error: None
    counts: CallCounts = field(default_factory=CallCounts)
    _queue: list[Call] = field(default_factory=list)
    _shared: SharedTensors = field(default_factory=SharedTensors)

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls; they run at the next poll."""
        self._queue += calls

    def poll(self, timeout_s: float | None = None) -> list[Answer]:
        """Run all that was submitted."""
        calls, self._queue = self._queue, []
        if len(calls) == 1:
            return [self._alone(calls[0])]
        answers: list[Answer] = []
        for spec, members in self._grouped(calls):
            answers += (
                self._together(spec, members)
                if spec is not None and len(members) > 1
                else map(self._alone, members)
            )
        return answers

    def forget(self, request_id: str) -> None:
        """Drop what hooks keep for a request."""
        for hook in self.hooks:
            hook.forget(request_id)

    def _grouped(self, calls: Sequence[Call]) -> list[tuple[BatchSpec | None, list[Call]]]:
        """Calls with equal keys, in the order in which each group's first call came: by order, never by clock."""
        groups: dict[Hashable, tuple[BatchSpec | None, list[Call]]] = {}
        for call in calls:
            spec = self.specs.get((call.component, call.method))
            key: Hashable = id(call)
            if (
                spec is not None
                and call.guider is None
                and not any(hook.needs_solo(call) for hook in self.hooks)
            ):
                try:
                    key = (
                        call.component,
                        call.method,
                        spec.key(spec.bind(call.args, call.kwargs), self._shared),
                    )
                except Unmergeable as why:
                    log.debug("call runs alone", extra={"component": call.component, "why": str(why)})
            groups.setdefault(key, (spec, []))[1].append(call)
        return list(groups.values())

    def _together(self, spec: BatchSpec, members: list[Call]) -> list[Answer]:
        """One merged call. If it fails, each member runs alone: one request's fault never fails its neighbours."""
        bound = [spec.bind(call.args, call.kwargs) for call in members]
        first = members[0]
        try:
            rows = [spec.rows(arguments) for arguments in bound]
            merged, padded = spec.merge(bound, rows)
            result = self._run(first, len(members), (), merged)
            parts = spec.split(result, rows, bound, padded)
        except Exception as error:  # noqa: BLE001 - whatever a module raises, its neighbours go on
            self.on_fault(error)
            log.warning(
                "merged call failed; its members run alone",
                extra={"component": first.component, "why": words_of(error)[:200]},
            )
            return [self._alone(call) for call in members]
        return [Answer(call, part) for call, part in zip(members, parts, strict=True)]

    def _alone(self, call: Call) -> Answer:
        module = self.modules[call.component]
        try:
            with _all_around(self.hooks, call, module):
                return Answer(call, self._run(call, 1, call.args, call.kwargs))
        except Exception as error:  # noqa: BLE001 - raised again inside the request
            self.on_fault(error)
            return Answer(call, error=error)

    def _run(self, call: Call, members: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.modules[call.component]
        began = time.perf_counter()
        try:
            run = module if call.method == "forward" else getattr(module, call.method)
            if (call.component, call.method) not in self.plain:
                return run(*args, **kwargs)
            # The same bits as under no_grad, without its bookkeeping: 15 % of a small forward.
            with torch.inference_mode():
                result = run(*args, **kwargs)
            return map_tensors(result, _as_normal)
        finally:
            self.counts.note(f"{call.component}.{call.method}", members, time.perf_counter() - began)


def _as_normal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that may be written to outside inference mode, as pipelines do, and is versioned.

    A small one is copied, which is quickest; a large one gets a new tensor on the same memory.
    """
    if not tensor.is_inference():
        return tensor
    if tensor.numel() <= COPIED_NUMBERS:
        return tensor.clone()
    normal = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return normal.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _all_around(
    hooks: Sequence[CallHook], call: Call, module: torch.nn.Module
) -> AbstractContextManager[Any]:
    """All hooks around one call, and the guider's own hooks on the module if it has one."""
    if not hooks and call.guider is None:
        return nullcontext()
    stack = ExitStack()
    for hook in hooks:
        stack.enter_context(hook.around(call, module))
    if call.guider is not None:
        type(call.guider).prepare_models(call.guider, module)
        stack.callback(type(call.guider).cleanup_models, call.guider, module)
    return stack
