"""Runs of a pipeline with every component call taped: what the probe compares."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import ModelError
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.scripts.hooks import CallHook, Run
from stage_runtime.scripts.isolation import CacheContexts, ProcessorOverlay
from stage_runtime.scripts.private_pipeline import components, open_script
from stage_runtime.scripts.script import Call, Script
from stage_runtime.scripts.tensor_tree import clone, tensors


@dataclass(slots=True)
class Taped:
    """One recorded call: its arguments before it ran, whether the module wrote to them, and what it returned."""

    component: str
    method: str
    arguments: dict[str, Any]
    result: Any
    wrote: bool
    own_processors: bool
    """The request had put attention processors of its own on that module."""


@dataclass(slots=True)
class Tape:
    """A whole run of the pipeline, call by call."""

    calls: list[Taped] = field(default_factory=list)
    denoisers: Counter[str] = field(default_factory=Counter)
    """Components that were called right before a scheduler step."""
    steps: int = 0
    """Of schedulers."""
    loops: list[int] = field(default_factory=list)
    """Turns of each loop that has a progress bar."""
    result: Any = None
    disturbed: bool = False
    """The pipeline put other attention processors on a module."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline with its modules and what keeps their state apart."""

    pipeline: Any
    modules: Mapping[str, torch.nn.Module]
    overlay: ProcessorOverlay
    contexts: CacheContexts
    hooks: Sequence[CallHook] = ()
    """Of features: the probe's own calls run inside them, so that the model is probed as it is served."""

    @classmethod
    def of(cls, pipeline: Any, hooks: Sequence[CallHook] = ()) -> Loaded:
        """Take the pipeline as it is now for its clean state."""
        modules = components(pipeline)
        return cls(pipeline, modules, ProcessorOverlay(modules), CacheContexts.among(modules), hooks)

    @property
    def name(self) -> str:
        """The pipeline's class."""
        return type(self.pipeline).__name__

    def around(self, call: Call) -> AbstractContextManager[object]:
        """What must hold while this call of a probe runs."""
        run = Run(self.modules[call.component], call.method, (call,))
        stack = ExitStack()
        for hook in (self.contexts, *self.hooks):
            stack.enter_context(hook.around(run))
        return stack

    def forget(self, request_id: str) -> None:
        """Drop what the probe's calls left."""
        for hook in (self.contexts, *self.hooks):
            hook.forget(request_id)


def record(loaded: Loaded, arguments: dict[str, Any]) -> Tape:
    """A whole run with every component call taped.

    Raises: ModelError with the pipeline's own words; what says that memory ran out, as it is.
    """
    tape = Tape()
    script = open_script(loaded.pipeline, "probe", arguments)
    script.start()
    last = ""
    while not script.done:
        if isinstance(script.pending, Call):
            last = script.pending.component
            _answer(script, script.pending, loaded, tape)
        else:
            tape.denoisers[last] += 1
            script.resume()
    tape.steps, tape.loops = script.progress.scheduler_steps, script.progress.loops
    tape.result, error = script.result, script.error
    script.release()
    tape.disturbed = tape.disturbed or loaded.overlay.disturbed
    loaded.overlay.restore()
    loaded.forget("probe")
    if error is not None and out_of_memory(error):
        raise error
    if error is not None:
        raise ModelError(_reason(loaded.name, error)) from error
    return tape


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, NameError) and error.name:
        # What a class imports only where it is installed is an unknown name elsewhere.
        return f"{name} needs a package that is not installed: {error.name}"
    return f"{name} can't be run from a prompt, a size and a number of steps: {words_of(error)}"


def _answer(script: Script, call: Call, loaded: Loaded, tape: Tape) -> None:
    module = loaded.modules[call.component]
    parameters = positional(module, call.method)
    arguments = {**dict(zip(parameters, call.args, strict=False)), **call.kwargs}
    before = clone(arguments)
    versions = [tensor._version for _, tensor in tensors(arguments)]
    own_processors = loaded.overlay.disturbs(module)
    tape.disturbed = tape.disturbed or loaded.overlay.disturbed
    try:
        with loaded.around(call):
            result = run(module, call.method, arguments)
    except Exception as error:  # noqa: BLE001 - raised again inside the pipeline
        script.throw(error)
        return
    wrote = versions != [tensor._version for _, tensor in tensors(arguments)]
    tape.calls.append(Taped(call.component, call.method, before, clone(result), wrote, own_processors))
    script.resume(result)


def run(module: torch.nn.Module, method: str, arguments: dict[str, Any]) -> Any:
    """Call a module's method with arguments by name."""
    return module(**arguments) if method == "forward" else getattr(module, method)(**arguments)


def positional(module: torch.nn.Module, method: str) -> tuple[str, ...]:
    """Names of a method's parameters, in order."""
    return tuple(inspect.signature(getattr(module, method)).parameters)
