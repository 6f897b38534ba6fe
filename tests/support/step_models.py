"""Step models that go wrong in one way each, on the trained weights of the digits model, and a stage to run them in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace as with_changes

from stage_runtime.assemble_rank import assemble_worker
from stage_runtime.core.outcome import Modality, Output
from stage_runtime.core.request import Request
from stage_runtime.executor.uni import UniExecutor
from stage_runtime.pipelines.arguments import build_requests, small_arguments
from stage_runtime.pipelines.contract import ResolvedModel, Wishes
from stage_runtime.pipelines.families.digits.model import DigitsModel, DigitState
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.step_model import Newcomer, StepModel, StepResult
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import PIXELS, OutputFormat
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.step import StepScheduler
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.worker import Worker
from support.hub_stage import HubStage

DIGITS: Final = Path(__file__).parents[2] / "models" / "digits" / "checkpoint"
CPU: Final = torch.device("cpu")


class OutOfMemoryError(RuntimeError):
    """What a device without memory raises, by its name."""


class BrokenDenoiser(DigitsModel):
    """Fails over an eight."""

    def denoise_step(self, states: Sequence[DigitState]) -> torch.Tensor:
        if any(state.asked.digit == 8 for state in states):
            raise RuntimeError("the network met an eight")
        return super().denoise_step(states)


class BrokenSolver(DigitsModel):
    """Fails over an eight at its second step."""

    def step_scheduler(self, states: Sequence[DigitState], prediction: torch.Tensor) -> list[DigitState]:
        if any(state.asked.digit == 8 and state.step == 1 for state in states):
            raise RuntimeError("the solver met an eight")
        return super().step_scheduler(states, prediction)


class BrokenDecoder(DigitsModel):
    """Can't decode an eight."""

    def post_decode(self, states: Sequence[DigitState]) -> list[StepResult]:
        if any(state.asked.digit == 8 for state in states):
            raise RuntimeError("the decoder met an eight")
        return super().post_decode(states)


class OutOfMemoryTogether(DigitsModel):
    """Has memory for one at a time; over an eight for none."""

    def denoise_step(self, states: Sequence[DigitState]) -> torch.Tensor:
        if any(state.asked.digit == 8 for state in states):
            raise OutOfMemoryError("tried to allocate 2 GiB")
        return super().denoise_step(states)


class SeesNeighbours(DigitsModel):
    """Mixes the rows of a call, as a normalisation over the batch does."""

    def denoise_step(self, states: Sequence[DigitState]) -> torch.Tensor:
        velocity = super().denoise_step(states)
        return velocity + 0.1 * velocity.mean(0, keepdim=True)


class WritesToStates(DigitsModel):
    """Moves the noisy picture in place."""

    def step_scheduler(self, states: Sequence[DigitState], prediction: torch.Tensor) -> list[DigitState]:
        moved = super().step_scheduler(states, prediction)
        for state, after in zip(states, moved, strict=True):
            state.noisy.copy_(after.noisy)
        return moved


class StandsStill(DigitsModel):
    """Never counts a step."""

    def step_scheduler(self, states: Sequence[DigitState], prediction: torch.Tensor) -> list[DigitState]:
        return [replace(state, step=state.step - 1) for state in super().step_scheduler(states, prediction)]


class AnswersForOne(DigitsModel):
    """Forgets all but the first of those that it was asked for."""

    def prepare_encode(self, newcomers: Sequence[Newcomer]) -> list[DigitState]:
        return super().prepare_encode(newcomers)[:1]


class ApartByGuidance(DigitsModel):
    """Runs guided and unguided requests in calls of their own."""

    def batch_key(self, state: DigitState) -> Hashable:
        return super().batch_key(state), state.guided


@cache
def resolved() -> ResolvedModel:
    """The shipped checkpoint with its record."""
    return resolve(DIGITS)


def a_model(kind: type[DigitsModel] = DigitsModel) -> DigitsModel:
    """The trained weights in a model of this kind."""
    return kind.load(DIGITS, dtype=torch.float32, device=CPU)


def digit(request_id: str, prompt: str, *, steps: int = 4, seed: int = 0, **wishes: Any) -> Request:
    """A request as a client makes it, but for its id."""
    wished = Wishes(prompt=prompt, num_inference_steps=steps, seed=seed, **wishes)
    (request,) = build_requests(resolved(), wished, request_id=request_id)
    return with_changes(request, request_id=request_id)


def _floats(result: Any, _sample_rate: int | None) -> Output:
    array = np.ascontiguousarray(result.images[0].numpy())
    return Output(modality=Modality.IMAGE, data=array.tobytes(), shape=array.shape, dtype=str(array.dtype))


FLOATS: Final = OutputFormat({}, _floats)
"""Pictures before they are rounded to bytes, so that "equal" means equal to the last bit."""


def step_stage(
    model: StepModel[Any] | None = None,
    *,
    scheduler: type[BaseScheduler] = StepScheduler,
    slots: int = 4,
    options: RunnerOptions = RunnerOptions(output=FLOATS),  # noqa: B008 - a frozen value
    faults: FaultProbe | None = None,
) -> HubStage:
    """A step model under the real scheduler and the real executor, driven tick by tick."""
    worker = step_worker(model, options=options, faults=faults)
    return HubStage(UniExecutor(lambda: worker), worker, scheduler(max_num_seqs=slots))


def step_worker(
    model: StepModel[Any] | None = None,
    *,
    options: RunnerOptions = RunnerOptions(output=PIXELS),  # noqa: B008 - a frozen value
    faults: FaultProbe | None = None,
) -> Worker:
    """A worker of a step model; of the digits model unless told otherwise."""
    return assemble_worker(
        lambda _device: a_model() if model is None else model,
        partial(small_arguments, resolved()),
        CPU,
        faults=faults,
        options=options,
    )
