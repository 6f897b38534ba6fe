"""The in-process target: groups calls that fit together, runs the real module once a group, gives each its rows.

A call alone runs with exactly the arguments its pipeline made, so one request is bitwise equal to plain diffusers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from stage_runtime.batching.grouping import ALONE, run_grouped
from stage_runtime.batching.spec import BatchSpec, SharedTensors, Unmergeable
from stage_runtime.scripts.hooks import CallHook, Run
from stage_runtime.scripts.script import Call
from stage_runtime.scripts.target import Answer, OnAnswer
from stage_runtime.scripts.tensor_tree import map_tensors

log = logging.getLogger(__name__)

COPIED_NUMBERS: Final = 4096
"""Up to so many numbers a copy of a tensor takes less time than a new tensor on its memory."""

Method = tuple[str, str]
"""Component and method, e.g. ("vae", "decode")."""


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
    """`on_fault(error)` is told of every exception a module raised; it raises when the device itself is lost.

    `any_failed(here)`: where several ranks make the same calls, whether a joint one failed on any of them. Called by
    all of them after each joint call that they share. None: this rank has its model for itself.
    """

    modules: Mapping[str, torch.nn.Module]
    specs: Mapping[Method, BatchSpec] = field(default_factory=dict)
    plain: Collection[Method] = ()
    """Methods that answer with nothing but tensors and plain values: they run in inference mode, and each tensor is
    made a normal one again. In what others answer with, tensors would stay such that pipelines can't edit them."""
    hooks: Sequence[CallHook] = ()
    on_fault: Callable[[Exception], None] = lambda error: None
    any_failed: Callable[[bool], bool] | None = None
    counts: CallCounts = field(default_factory=CallCounts)
    _queue: list[Call] = field(default_factory=list)
    _shared: SharedTensors = field(default_factory=SharedTensors)

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls; they run at the next poll."""
        self._queue += calls

    def poll(self, timeout_s: float | None = None) -> list[Answer]:
        """Run all that was submitted."""
        calls, self._queue = self._queue, []
        if not calls:
            return []
        return [
            Answer(call, error=found) if isinstance(found, Exception) else Answer(call, found)
            for call, found in zip(calls, run_grouped(calls, self), strict=True)
        ]

    def wake_by(self, wake: OnAnswer) -> None:
        """It answers within `poll`: there is nobody to wake."""

    def forget(self, request_id: str) -> None:
        """Drop what hooks keep for a request."""
        self._queue = [call for call in self._queue if call.script.request_id != request_id]
        for hook in self.hooks:
            hook.forget(request_id)

    # How its groups run

    def key(self, call: Call) -> Hashable:
        """What must be equal for two calls to be merged."""
        spec = self.specs.get((call.component, call.method))
        if spec is None or call.guider is not None or any(hook.needs_solo(call) for hook in self.hooks):
            return ALONE
        try:
            fits = spec.key(spec.bind(call.args, call.kwargs), self._shared)
        except Unmergeable as why:
            log.debug("call runs alone", extra={"component": call.component, "why": str(why)})
            return ALONE
        return call.component, call.method, fits, *[hook.key(call) for hook in self.hooks]

    def together(self, calls: Sequence[Call]) -> Sequence[Any]:
        """One merged call."""
        first = calls[0]
        spec = self.specs[first.component, first.method]
        bound = [spec.bind(call.args, call.kwargs) for call in calls]
        rows = [spec.rows(arguments) for arguments in bound]
        merged, padded = spec.merge(bound, rows)
        run = Run(self.modules[first.component], first.method, tuple(calls), tuple(rows))
        with self._all_around(run):
            result = self._call(run, (), merged)
        return spec.split(result, rows, bound, padded)

    def alone(self, call: Call) -> Any:
        """The call as its pipeline made it."""
        run = Run(self.modules[call.component], call.method, (call,))
        if not self.hooks and call.guider is None:
            return self._call(run, call.args, call.kwargs)
        with self._all_around(run):
            return self._call(run, call.args, call.kwargs)

    def failed(self, calls: Sequence[Call], error: Exception) -> None:
        """Ask whether the device is lost."""
        self.on_fault(error)

    def agreed(self, calls: Sequence[Call], failed: bool) -> bool:
        """By agreement, where other ranks make the same calls."""
        if self.any_failed is None or not calls[0].shared:
            return failed
        return self.any_failed(failed)

    def _call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        component = run.calls[0].component
        began = time.perf_counter()
        try:
            function = run.module if run.method == "forward" else getattr(run.module, run.method)
            if (component, run.method) not in self.plain:
                return function(*args, **kwargs)
            # The same bits as under no_grad, without its bookkeeping: 15 % of a small forward.
            with torch.inference_mode():
                result = function(*args, **kwargs)
            return map_tensors(result, _as_normal)
        finally:
            self.counts.note(f"{component}.{run.method}", len(run.calls), time.perf_counter() - began)

    def _all_around(self, run: Run) -> AbstractContextManager[Any]:
        """All hooks around one run, and the guider's own hooks on the module if its call has one."""
        guider = run.calls[0].guider
        if not self.hooks and guider is None:
            return nullcontext()
        stack = ExitStack()
        for hook in self.hooks:
            stack.enter_context(hook.around(run))
        if guider is not None:
            type(guider).prepare_models(guider, run.module)
            stack.callback(type(guider).cleanup_models, guider, run.module)
        return stack


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
