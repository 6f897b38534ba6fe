"""What must hold on a shared module while one request's call runs: hooks of the batcher, never a second lifecycle."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.hooks.hooks import StateManager

from stage_runtime.scripts.hooks import Run
from stage_runtime.scripts.script import Call


class ProcessorOverlay:
    """Keeps attention processors that a request put on the shared modules private to it.

    PAG pipelines set `module.processor` when they start and put the old ones back when they end, on the model that
    all requests share. The base is captured at load, since an aborted probe leaves its processors behind. A request
    that changed any runs its calls alone.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._holders = [
            part for module in modules.values() for part in module.modules() if hasattr(part, "processor")
        ]
        self._base = [part.processor for part in self._holders]
        self._own: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._own)

    @contextmanager
    def inside(self, request_id: str) -> Iterator[None]:
        """Around running a request's own code: it sees its processors, and what it changes stays its own."""
        self._put(self._own.get(request_id, self._base))
        try:
            yield
        finally:
            now = [part.processor for part in self._holders]
            if all(mine is base for mine, base in zip(now, self._base, strict=True)):
                self._own.pop(request_id, None)
            else:
                self._own[request_id] = now
            self._put(self._base)

    @property
    def disturbed(self) -> bool:
        """True when some module has another processor than at load."""
        return any(part.processor is not base for part, base in zip(self._holders, self._base, strict=True))

    def disturbs(self, module: torch.nn.Module) -> bool:
        """True when a part of this module has another processor than at load."""
        inside = {id(part) for part in module.modules()} if self.disturbed else set()
        return any(
            id(part) in inside and part.processor is not base
            for part, base in zip(self._holders, self._base, strict=True)
        )

    def restore(self) -> None:
        """Put the processors of load time back."""
        self._put(self._base)

    def needs_solo(self, call: Call) -> bool:
        """True for a request that has processors of its own."""
        return call.script.request_id in self._own

    def key(self, call: Call) -> Hashable:
        """Nothing: who has processors of its own runs alone."""
        return None

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """The request's processors are on the modules while its call runs."""
        own = self._own.get(run.calls[0].script.request_id)
        if own is None:
            yield
            return
        self._put(own)
        try:
            yield
        finally:
            self._put(self._base)

    def forget(self, request_id: str) -> None:
        """Drop the request's processors."""
        self._own.pop(request_id, None)

    def _put(self, processors: list[Any]) -> None:
        for part, processor in zip(self._holders, processors, strict=True):
            part.processor = processor


@dataclass(slots=True)
class CacheContexts:
    """Keeps the state of step caches apart by request: a context's name is only "cond" or "uncond".

    State is kept on the module under the context's name, so the request's id goes into it. Calls of a module with
    such state run alone.
    """

    modules: Mapping[str, torch.nn.Module]
    """The components that have a step cache enabled."""
    _names: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def among(cls, modules: Mapping[str, torch.nn.Module]) -> CacheContexts:
        """For those of `modules` that have one."""
        return cls(
            {name: module for name, module in modules.items() if getattr(module, "is_cache_enabled", False)}
        )

    def needs_solo(self, call: Call) -> bool:
        """True for each call of a component with a step cache."""
        return call.component in self.modules

    def key(self, call: Call) -> Hashable:
        """Nothing: calls of such a component run alone."""
        return None

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """The call runs in its request's own context."""
        call, module = run.calls[0], run.module
        if call.component not in self.modules or call.context is None:
            yield
            return
        name, options = call.context
        own = f"{call.script.request_id}/{name}"
        self._names.setdefault(call.script.request_id, set()).add((call.component, own))
        with module.cache_context(own, **options):  # type: ignore[operator]
            yield

    def forget(self, request_id: str) -> None:
        """Drop the request's state from the modules."""
        for component, name in self._names.pop(request_id, ()):
            for part in self.modules[component].modules():
                registry = getattr(part, "_diffusers_hook", None)
                for hook in registry.hooks.values() if registry is not None else ():
                    for manager in vars(hook).values():
                        if isinstance(manager, StateManager):
                            manager._state_cache.pop(name, None)
