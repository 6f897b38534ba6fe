"""Classes that a stage brings for its ranks: the runner, and what adds methods to the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stage_api.spec import ExtensionsSpec
from stage_runtime.core.import_path import Place, has_all, resolve
from stage_runtime.worker.extension import lacks
from stage_runtime.worker.worker import TAKEN

RUNNER_MEMBERS: Final = (
    "add",
    "close",
    "convert",
    "counts",
    "forget",
    "outstanding",
    "stop_early",
    "tick",
    "waits",
    "wake_by",
)
"""What a worker uses of a runner, beside `capability`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Classes that a stage may bring: its runner, and methods to add to the worker."""

    runner: Callable[..., Any] | None = None
    """None: the runtime's own."""
    extension: type | None = None
    """Its public methods can be invoked."""


def parts_of(extensions: ExtensionsSpec) -> WorkerParts:
    """The classes that a stage asks for. Raises: SpecError with everything that is wrong with any of them."""
    found = resolve(
        (
            Place(
                "runner", extensions.runner, "a class with the methods of a runner", has_all(RUNNER_MEMBERS)
            ),
            Place(
                "worker",
                extensions.worker,
                "a class whose methods a worker can take on",
                partial(lacks, taken=TAKEN),
            ),
        )
    )
    return WorkerParts(runner=found.get("runner"), extension=found.get("worker"))
