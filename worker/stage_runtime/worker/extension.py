"""Methods that a stage adds to its workers, to be called through the engine.

An extension sees the worker through a narrow view and has no lifecycle: it can't replace what a worker does, and it
reaches neither waves nor scheduler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import torch

from stage_api.errors import Fault, SpecError
from stage_runtime.batching.batcher import CallCounts
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import InvalidRequest, RequestError, RequestFailed
from stage_runtime.worker.tensor_wire import pack, unpack

FIELD: Final = "spec.engine.extensions.worker"


class WorkerView:
    """What an extension gets: the rank's device, its pipeline, and how often its modules were called.

    Weights may be changed in place between two ticks. Their dtype, shape and device must stay: the runner counts on
    them.
    """

    __slots__ = ("_counts", "device", "pipeline", "rank")

    def __init__(
        self, *, rank: int, device: torch.device, pipeline: Any, counts: Callable[[], CallCounts]
    ) -> None:
        self.rank, self.device, self.pipeline, self._counts = rank, device, pipeline, counts

    @property
    def counts(self) -> CallCounts:
        """Calls of real modules since the start."""
        return self._counts()


class Extension:
    """An instance of `kind`, made with a view. Its public methods can be called by name."""

    def __init__(self, kind: type, view: WorkerView, taken: Collection[str]) -> None:
        """`taken`: names that it may not use. Raises: SpecError."""
        wrong = lacks(kind, taken)
        if wrong is not None:
            raise SpecError(
                [Fault(FIELD, "a class whose methods a worker can take on", f"{kind.__name__}, {wrong}")]
            )
        self._names = tuple(_methods(kind))
        try:
            self._own = kind(view)
        except Exception as error:
            got = f"{kind.__name__}, which raises {words_of(error)}"
            raise SpecError([Fault(FIELD, "a class that is made with a WorkerView", got)]) from error

    def invoke(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a method; returns its answer packed for a message.

        Raises: InvalidRequest for a method or arguments that it doesn't have, or of the method itself; RequestFailed
        for what else it raises, and for an answer that can't travel.
        """
        if name not in self._names:
            raise InvalidRequest(f"method: expected one of {', '.join(self._names)}, got {name!r}", "method")
        method = getattr(self._own, name)
        try:
            bound = inspect.signature(method).bind(**unpack(dict(arguments)))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"arguments: {name} doesn't take these: {error}", "arguments") from error
        try:
            with torch.no_grad():
                answer = method(*bound.args, **bound.kwargs)
        except RequestError:
            raise
        except Exception as error:
            raise RequestFailed(f"{name}: {words_of(error)}") from error
        try:
            return pack(answer, name)
        except TypeError as error:
            raise RequestFailed(f"the answer can't be sent: {error}") from error


def lacks(kind: type, taken: Collection[str]) -> str | None:
    """Why `kind` can't be an extension, in words; None when it can."""
    methods = _methods(kind)
    own = sorted(name for name in dir(kind) if name in taken)
    if own:
        return f"which has {', '.join(own)}, as the worker itself"
    deferred = [name for name, value in methods.items() if _is_async(value)]
    if deferred:
        return f"whose {', '.join(deferred)} would return no answer but a coroutine"
    return None if methods else "which has no public method"


def _methods(kind: type) -> dict[str, Any]:
    statics = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in statics.items() if inspect.isroutine(value)}


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
