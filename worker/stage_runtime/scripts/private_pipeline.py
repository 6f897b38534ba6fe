"""A pipeline for one request: a copy with schedulers and guiders of its own, and stand-ins for the shared modules.

Traps handled here and in `script`, each with a test of its name: one pipeline or scheduler object shared by requests,
the epilogue that resets every request's cache state, cache contexts held across a park, attributes set on a shared
module, pipelines nested in pipelines, schedulers that are deep-copied or compared by type, guiders that hook the model.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from stage_runtime.scripts.intercepted import intercept
from stage_runtime.scripts.progress import LoopBar, Progress
from stage_runtime.scripts.script import Call, Script

PARKING_METHODS: Final = ("decode", "encode")
"""Methods, beside the forward pass itself, whose calls park."""


class ComponentProxy:
    """Stands for a shared module in one request's pipeline: calls park, everything else is the real module's.

    It is no nn.Module, but says it is of the real module's class, so that isinstance() holds.
    """

    __slots__ = ("_context", "_facts", "_guider", "_name", "_real", "_script")

    def __init__(self, real: torch.nn.Module, script: Script, name: str, facts: Mapping[str, Any]) -> None:
        for slot, value in (
            ("_real", real),
            ("_script", script),
            ("_name", name),
            ("_facts", facts),
            ("_context", None),
            ("_guider", None),
        ):
            object.__setattr__(self, slot, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_real"))

    def __getattr__(self, name: str) -> Any:
        facts = object.__getattribute__(self, "_facts")
        if name in facts:
            return facts[name]
        value = getattr(object.__getattribute__(self, "_real"), name)
        if name in PARKING_METHODS and inspect.ismethod(value):
            parked = functools.partial(self._park, name)
            functools.update_wrapper(parked, value)
            return parked
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a request tried to set {name!r} on the shared component {self._name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._park("forward", *args, **kwargs)

    def _park(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(self._script, self._name, method, args, kwargs)
        call.context, call.guider = self._context, self._guider
        return self._script.decode(call) if method == "decode" else self._script.ask(call)

    @contextmanager
    def cache_context(self, name: str, **options: Any) -> Iterator[None]:
        """Recorded with the call, applied around the real one under the request's own name."""
        before = self._context
        object.__setattr__(self, "_context", (name, options))
        try:
            yield
        finally:
            object.__setattr__(self, "_context", before)

    def _reset_stateful_cache(self, *_args: Any, **_kwargs: Any) -> None:
        """The pipeline's epilogue would reset the state of every request; the hub drops this one's alone."""

    def hook_guider(self, guider: Any) -> None:
        """Have `guider` prepare the real module around this request's calls only."""
        object.__setattr__(self, "_guider", guider)


def is_pipeline(value: Any) -> bool:
    """True for a pipeline, also one nested in another."""
    return hasattr(type(value), "maybe_free_model_hooks") and hasattr(type(value), "components")


def components(pipeline: Any, prefix: str = "") -> dict[str, torch.nn.Module]:
    """Every module of `pipeline` by name, those of nested pipelines with their path, e.g. `prior_pipe.prior`."""
    found: dict[str, torch.nn.Module] = {}
    for name, value in vars(pipeline).items():
        if isinstance(value, torch.nn.Module):
            found[prefix + name] = value
        elif name != "_components_manager" and is_pipeline(value):
            found.update(components(value, f"{prefix}{name}."))
    return found


def stateful_parts(pipeline: Any) -> tuple[list[Any], list[Any]]:
    """Schedulers and guiders of a request's pipeline, nested ones too, in the order of their attributes."""
    schedulers: list[Any] = []
    guiders: list[Any] = []
    for name, value in vars(pipeline).items():
        if _is_scheduler(value):
            schedulers.append(value)
        elif _is_guider(value):
            guiders.append(value)
        elif name != "_components_manager" and is_pipeline(value):
            inner_schedulers, inner_guiders = stateful_parts(value)
            schedulers += inner_schedulers
            guiders += inner_guiders
    return schedulers, guiders


def _is_scheduler(value: Any) -> bool:
    return type(value).__module__.startswith("diffusers.schedulers") and hasattr(value, "step")


def _is_guider(value: Any) -> bool:
    return type(value).__module__.startswith("diffusers.guiders")


def private_pipeline(pipeline: Any, script: Script, prefix: str = "") -> Any:
    """`pipeline` for one request: own attributes, own schedulers and guiders, stand-ins for the modules.

    Attributes are put into `__dict__` directly: the pipeline's `__setattr__` would rewrite the shared config.
    """
    own = copy.copy(pipeline)
    own.__dict__ = dict(vars(pipeline))
    facts: Mapping[str, Mapping[str, Any]] = getattr(type(pipeline), "module_facts", {})
    own.__dict__["progress_bar"] = functools.partial(_loop_bar, script.progress)
    for name, value in vars(pipeline).items():
        if isinstance(value, torch.nn.Module):
            own.__dict__[name] = ComponentProxy(value, script, prefix + name, facts.get(name, {}))
        elif _is_scheduler(value):
            scheduler = own.__dict__[name] = copy.deepcopy(value)
            intercept(scheduler, script)
        elif _is_guider(value):
            own.__dict__[name] = _private_guider(value)
        elif name != "_components_manager" and is_pipeline(value):
            own.__dict__[name] = private_pipeline(value, script, f"{prefix}{name}.")
    return own


def _loop_bar(progress: Progress, iterable: Any = None, total: int | None = None, **_drawing: Any) -> LoopBar:
    return LoopBar(progress, iterable, total)


def _private_guider(guider: Any) -> Any:
    """A copy that leaves its hooks on the model to the hub: two requests' hooks of one name would collide."""
    own = copy.deepcopy(guider)
    base = next(kind for kind in type(own).__mro__ if kind.__name__ == "BaseGuidance")
    if type(own).prepare_models is not base.prepare_models:  # type: ignore[attr-defined]
        own.prepare_models = lambda denoiser: denoiser.hook_guider(own)
        own.cleanup_models = lambda denoiser: denoiser.hook_guider(None)
    return own


def open_script(
    pipeline: Any, request_id: str, arguments: Mapping[str, Any], progress: Progress | None = None
) -> Script:
    """A script, not started yet, that runs `pipeline(**arguments)` for one request, counting in `progress`."""
    script = Script(request_id, progress)
    script.pipeline = private_pipeline(pipeline, script)
    script.play = functools.partial(script.pipeline, **arguments)
    return script
