"""What a step model can do, found out by running it, as the probe does for pipelines.

Two requests are run alone, and then together at unlike steps. A model whose answers differ runs one request at a
time from then on, and says so. One whose states are no values can't be served at all: everything relies on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from stage_runtime.batching.probe import SEED, STEPS, TOLERANCE
from stage_runtime.batching.step_calls import StepCalls
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import ModelError, NonFiniteOutput
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.core.request import Request
from stage_runtime.pipelines.step_model import StepModel, StepResult, StepState
from stage_runtime.scripts.finite import check_finite
from stage_runtime.scripts.tensor_tree import relative_error, tensors

Ask = Callable[[int, int], Request]
"""(seed, steps) → a small request."""


class Findings(NamedTuple):
    """`reason`: why requests can't share a call; empty when they can."""

    result: StepResult
    reason: str


@torch.no_grad()
def probe(model: StepModel[Any], ask: Ask) -> Findings:
    """Run the model a few steps and find out. Raises ModelError when it can't be run or breaks the protocol."""
    calls, name = StepCalls(model), type(model).__name__
    first = _sure(name, calls.prepare([ask(SEED, STEPS)]))
    second = _sure(name, calls.prepare([ask(SEED + 1, STEPS + 1)]))
    alone = [_sure(name, calls.decode(_ended(name, calls, state)))[0] for state in (first, second)]
    try:
        check_finite([_fields(result) for result in alone], "results")
    except NonFiniteOutput as error:
        raise ModelError(f"{name} can't be run: {error}") from error
    again = _sure(name, calls.decode(_ended(name, calls, first)))[0]
    if (gap := _difference(again, alone[0])) > _allowed(alone[0]):
        raise ModelError(
            f"{name} gives another result from the same state a second time (relative {gap:.1e}): it writes to states, "
            "or keeps something outside of them"
        )
    try:
        reason = _joint_fault(calls, ask, alone)
    except ModelError as error:
        reason = words_of(error, kind=False)
    return Findings(alone[0], reason)


def _joint_fault(calls: StepCalls, ask: Ask, alone: Sequence[StepResult]) -> str:
    """Why the two can't run together; empty when each gets what it gets alone. Raises ModelError when they fail."""
    model, name = calls.model, type(calls.model).__name__
    try:
        first, second = calls.start([ask(SEED, STEPS), ask(SEED + 1, STEPS + 1)])
        if model.batch_key(first) != model.batch_key(second):
            return "its states have unlike batch keys"
        (second,) = _sure(name, calls.advance([second]))
        while first.step < first.steps and second.step < second.steps:
            first, second = model.step_scheduler([first, second], model.denoise_step([first, second]))
        (first,), (second,) = _ended(name, calls, [first]), _ended(name, calls, [second])
        together = model.post_decode([first, second])
        gap = max(_difference(a, b) for a, b in zip(together, alone, strict=True))
    except ModelError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        return f"two requests together failed: {words_of(error)}"[:300]
    allowed = _allowed(alone[0])
    return (
        ""
        if gap <= allowed
        else f"two together come out differently (relative {gap:.1e}, allowed {allowed:.0e})"
    )


def _ended(name: str, calls: StepCalls, states: Sequence[StepState]) -> Sequence[StepState]:
    (state,) = states
    while state.step < state.steps:
        (state,) = _sure(name, calls.advance([state]))
    return [state]


def _sure(name: str, answers: Sequence[Any]) -> list[Any]:
    """The answers, none of them an error. Raises: ModelError; what says that memory ran out, as it is."""
    for answer in answers:
        if isinstance(answer, Exception) and out_of_memory(answer):
            raise answer
        if isinstance(answer, Exception):
            raise ModelError(f"{name} can't be run: {type(answer).__name__}: {answer}") from answer
    return list(answers)


def _difference(got: StepResult, want: StepResult) -> float:
    return relative_error(_fields(got), _fields(want))


def _allowed(result: StepResult) -> float:
    return max(TOLERANCE.get(tensor.dtype, 0.0) for _, tensor in tensors(_fields(result)))


def _fields(result: StepResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in ("images", "frames", "audios")}
