"""The seam between policy and devices: an executor carries out waves and answers with outcomes by request id.

An executor never decides what runs, in which order, or who is admitted (DIFF-RUNTIME-INV-002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from stage_api.config import StageConfig
from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.core.outcome import ExecutorOutcome
from stage_runtime.core.wave import Wave
from stage_runtime.pipelines.contract import ResolvedModel


@runtime_checkable
class Executor(Protocol):
    """Runs waves. Only the engine's loop thread calls it, apart from `health`, `capability`, `wake` and `when_dead`.

    The thread that constructs an executor is the thread that must use it.
    """

    @property
    def capability(self) -> Capability:
        """What the loaded model can do; valid as soon as the executor is constructed."""

    def submit(self, wave: Wave) -> None:
        """Take a wave: forget its finished ids, take in its new requests, get ready to run its scheduled ids.

        Raises: EngineDeadError when the group is unusable; InternalError for an id it doesn't know, or for KV
        fields, which nothing uses.
        """

    def poll(self, deadline_s: float | None) -> Sequence[ExecutorOutcome]:
        """Outcomes that are there, waiting at most until `deadline_s` on the monotonic clock (None: no limit).

        In one process a poll runs one tick: each scheduled request advances by about one denoise step, and
        requests that did not move give no outcome. With ranks of their own it waits for what they tell, and also
        returns, with nothing, when `wake` is called. While paused it only waits.
        Errors of one request are `Failed` outcomes. `Computed` frees a request's slot before its output is there.
        Raises: EngineDeadError when the group died; nothing is to be polled after it.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop working on these between two steps. Unknown and finished ids are no error. Gives no outcome."""

    def control(self, call: Control) -> object:
        """Have every rank carry out a control call between two ticks, and return their answers.

        Raises InvalidRequest when the model can't do it; RequestFailed, naming the ranks, when it failed on any.
        """

    def wake(self) -> None:
        """Make a poll that waits return. Any thread, also inside the garbage collector: takes no lock."""

    def when_dead(self, callback: Callable[[EngineDeadError], None]) -> None:
        """Call `callback` when the group dies, from whatever thread notices it, or now if it is dead."""

    def give_up(self, death: EngineDeadError) -> None:
        """The engine is dead: nothing here will end in order, and `close` need not wait for it. Any thread."""

    def health(self) -> None:
        """Raises EngineDeadError when the group is unusable. Safe from any thread."""

    def close(self) -> None:
        """Release model, device memory and processes. Idempotent."""


class ExecutorClass(Protocol):
    """What a stage's own executor class is called with, in the engine's loop thread."""

    def __call__(self, config: StageConfig, model: ResolvedModel, *, epoch: int) -> Executor: ...
