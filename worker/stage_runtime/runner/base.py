"""What a worker needs of a runner, whichever way its model is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stage_runtime.batching.batcher import CallCounts
from stage_runtime.core.capability import Capability
from stage_runtime.core.outcome import ExecutorOutcome, Output
from stage_runtime.core.request import Request
from stage_runtime.runner.output import PIXELS, Deliver, OutputFormat
from stage_runtime.scripts.target import OnAnswer

Ask = Callable[[str | None, int], dict[str, Any]]
"""(prompt, steps) → the arguments of a small request, for what is tried at load; without a prompt, of one that the
model surely can draw."""

OnFault = Callable[[Exception], None]
"""Told of every exception that the model raised; raises DeviceLost when the device itself is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a runner works."""

    merge: bool = True
    """False: every call runs alone, so that a picture never depends on its neighbours, to the last bit."""
    output: OutputFormat = PIXELS
    deliver: Deliver | None = None
    """Who takes what was made, unconverted; the outcome is `Computed` then. None: the runner converts it itself."""


class ModelRunner(Protocol):
    """Runs requests on one loaded model; implemented by `Runner` for pipelines and `StepRunner` for step models.

    Decides nothing: what runs, and with whom, is the wave's. Belongs to the thread that made it.
    """

    capability: Capability

    @property
    def counts(self) -> CallCounts:
        """Calls of the model since the start."""

    @property
    def waits(self) -> bool:
        """True when the last tick left a request where it was, since its call is answered from elsewhere, and late."""

    def wake_by(self, wake: OnAnswer) -> None:
        """Have `wake` called, from any thread, when such an answer is there. It takes no lock."""

    def add(self, request: Request) -> None:
        """Take a request in; it starts with the first tick that names it."""

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all that is held for these, wherever they are. Unknown ids are no error."""

    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """Advance these by one denoise step each. One that did not move gives no outcome.

        Raises InternalError for an id that was never added; DeviceLost when the device itself is gone.
        """

    def convert(self, result: Any) -> Output:
        """What a request has come to, in host memory. Any thread. Raises: ValueError for what it can't be."""

    def stop_early(self, request_id: str) -> None:
        """Have a request skip its remaining steps, after the one it is in. Raises InvalidRequest when it can't."""

    def outstanding(self) -> dict[str, int]:
        """What is held, by kind; all 0 at rest."""

    def close(self) -> None:
        """End everything and let go of the model."""


class RunnerClass(Protocol):
    """What a runner class that a stage brings is called with, unless it is a kind of `Runner`."""

    def __call__(
        self,
        model: Any,
        ask: Ask,
        *,
        on_fault: OnFault,
        sample_rate: int | None,
        options: RunnerOptions,
    ) -> ModelRunner: ...
