"""Calls of a step model: those that fit run together, and what fails together is tried alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from stage_runtime.batching.batcher import CallCounts
from stage_runtime.batching.grouping import ALONE, run_grouped
from stage_runtime.core.errors import ModelError
from stage_runtime.core.request import Request
from stage_runtime.pipelines.step_model import MakesChunks, Newcomer, StepModel, StepResult, StepState
from stage_runtime.scripts.noise import generator_of

PREPARE: Final = "model.prepare_encode"
DENOISE: Final = "model.denoise_step"
DECODE: Final = "model.post_decode"
CHUNKS: Final = "model.new_chunks"
METHODS: Final = (PREPARE, DENOISE, DECODE)
"""What is counted, and reported as the model's components."""

A = TypeVar("A")
B = TypeVar("B")


@dataclass(slots=True)
class StepCalls:
    """The four methods over any number of requests: an answer or an error for each, in the order asked.

    `merge`: False runs each alone. `on_fault(error)` is told of every exception; it raises when the device is lost.
    """

    model: StepModel[Any]
    merge: bool = True
    on_fault: Callable[[Exception], None] = lambda error: None
    counts: CallCounts = field(default_factory=CallCounts)

    def prepare(self, requests: Sequence[Request]) -> list[StepState | Exception]:
        """First states."""
        return self._each(PREPARE, requests, lambda request: request.key, self.start)

    def advance(self, states: Sequence[StepState]) -> list[StepState | Exception]:
        """Each one step further."""
        return self._each(DENOISE, states, self.model.batch_key, self._step)

    def decode(self, states: Sequence[StepState]) -> list[StepResult | Exception]:
        """What each has come to."""
        return self._each(DECODE, states, self.model.batch_key, self.model.post_decode)

    def new_chunks(self, states: Sequence[StepState]) -> list[StepResult | Exception | None]:
        """What of each output became final with its last step. None at all of a model that makes no chunks."""
        model = self.model
        if not isinstance(model, MakesChunks):
            return [None] * len(states)
        return self._each(CHUNKS, states, model.batch_key, model.new_chunks)

    def start(self, requests: Sequence[Request]) -> Sequence[StepState]:
        """`prepare_encode` with fresh generators: one that a failed call has drawn from would give other noise."""
        newcomers = [Newcomer(request, generator_of(request, self.model.device)) for request in requests]
        states = self.model.prepare_encode(newcomers)
        if not all(isinstance(state, StepState) for state in states):
            raise ModelError(f"{type(self.model).__name__}.prepare_encode gave what is no state")
        return states

    def _step(self, states: Sequence[StepState]) -> Sequence[StepState]:
        moved = self.model.step_scheduler(states, self.model.denoise_step(states))
        if [state.step for state in moved] != [state.step + 1 for state in states]:
            raise ModelError(
                f"{type(self.model).__name__}.step_scheduler did not move each state by one step"
            )
        return moved

    def _each(
        self,
        name: str,
        items: Sequence[A],
        key: Callable[[A], Hashable],
        run: Callable[[Sequence[A]], Sequence[B]],
    ) -> list[B | Exception]:
        return run_grouped(items, _Method(self, name, key, run)) if items else []


@dataclass(frozen=True, slots=True)
class _Method(Generic[A, B]):
    """One of the methods, as a kind of work whose items can be grouped."""

    calls: StepCalls
    name: str
    key_of: Callable[[A], Hashable]
    run: Callable[[Sequence[A]], Sequence[B]]

    def key(self, item: A) -> Hashable:
        return self.key_of(item) if self.calls.merge else ALONE

    def together(self, items: Sequence[A]) -> Sequence[B]:
        began_s = time.perf_counter()
        try:
            answers = self.run(items)
        finally:
            self.calls.counts.note(self.name, len(items), time.perf_counter() - began_s)
        if len(answers) != len(items):
            raise ModelError(f"{self.name} gave {len(answers)} answers for {len(items)} requests")
        return answers

    def alone(self, item: A) -> B:
        (answer,) = self.together([item])
        return answer

    def failed(self, items: Sequence[A], error: Exception) -> None:
        self.calls.on_fault(error)

    def agreed(self, items: Sequence[A], failed: bool) -> bool:
        return failed
