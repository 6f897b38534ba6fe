"""A runner without a model, for ranks that are real otherwise: it counts steps, and fails where a request says so.

Its pictures are of one colour, the request's seed, and too large for a message where the request is wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from stage_runtime.batching.batcher import CallCounts
from stage_runtime.core.capability import Capability, ComponentCapability
from stage_runtime.core.errors import InternalError, InvalidRequest
from stage_runtime.core.outcome import (
    Completed,
    Computed,
    ExecutorOutcome,
    Modality,
    Output,
    PhaseSeconds,
    Progressed,
    failed,
)
from stage_runtime.core.request import Request
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import Made

NO_TIME = PhaseSeconds(prepare=0.0, denoise=0.0, decode=0.0)
LARGE_SIDE = 160


def picture(request: Request) -> Output:
    """What a request comes to."""
    side = LARGE_SIDE if request.arguments["width"] == 128 else 1
    data = bytes([request.seed % 256]) * (side * side * 3)
    return Output(modality=Modality.IMAGE, data=data, shape=(side, side, 3), dtype="uint8")


class LightRunner:
    """Each tick advances every request that it names by one step."""

    def __init__(
        self, pipeline: Any, ask: Any, *, on_fault: Any, sample_rate: Any, options: RunnerOptions
    ) -> None:
        self.capability = Capability(
            pipeline="light",
            modality=Modality.IMAGE,
            components=(ComponentCapability(name="transformer.forward", merges=True),),
            denoisers=("transformer",),
            early_stop=True,
            resumable=True,
        )
        self._deliver = options.deliver
        self._requests: dict[str, Request] = {}
        self._steps: dict[str, int] = {}
        self._early: set[str] = set()

    @property
    def counts(self) -> CallCounts:
        """It calls nothing."""
        return CallCounts()

    @property
    def waits(self) -> bool:
        """Never."""
        return False

    def wake_by(self, wake: Any) -> None:
        """Nobody wakes it."""

    def add(self, request: Request) -> None:
        """Take a request in. Raises: InternalError for one that is here already."""
        if request.request_id in self._requests:
            raise InternalError(f"{request.request_id} is new, but is known")
        self._requests[request.request_id] = request
        self._steps[request.request_id] = 0

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all that is held for these."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self._steps.pop(request_id, None)
            self._early.discard(request_id)

    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """One step each."""
        return [self._step(self._requests[request_id]) for request_id in request_ids]

    def convert(self, result: Request) -> Output:
        """The request's picture."""
        return picture(result)

    def stop_early(self, request_id: str) -> None:
        """Be done with it at the next tick."""
        if not self._steps.get(request_id):
            raise InvalidRequest(f"request {request_id} is not running")
        self._early.add(request_id)

    def outstanding(self) -> dict[str, int]:
        """What is held."""
        return {"scripts": len(self._requests)}

    def close(self) -> None:
        """Let go of all."""
        self.forget(list(self._requests))

    def _step(self, request: Request) -> ExecutorOutcome:
        request_id = request.request_id
        step = self._steps[request_id] + 1
        if request.arguments.get("fail_at") == step:
            return failed(request_id, ValueError("nan"))
        if request_id in self._early:
            return self._done(request, step - 1)
        self._steps[request_id] = step
        if step == request.steps:
            return self._done(request, step)
        if step in request.preview_steps:
            return Progressed(
                request_id, step, request.steps, picture(request), request.preview_steps.index(step)
            )
        return Progressed(request_id, step, request.steps)

    def _done(self, request: Request, steps: int) -> ExecutorOutcome:
        if self._deliver is None:
            return Completed(request.request_id, picture(request), steps, NO_TIME)
        self._deliver(Made(request.request_id, request, steps, NO_TIME))
        return Computed(request.request_id)


class OneGoRunner(LightRunner):
    """A runner of a model without denoise steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capability = replace(self.capability, steps=False)
