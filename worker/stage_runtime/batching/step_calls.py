"""Calls of a step model: those that fit run together, and what fails together is tried alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from stage_runtime.batching.batcher import CallCounts
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import ModelError
from stage_runtime.core.request import Request
from stage_runtime.pipelines.step_model import Newcomer, StepModel, StepResult, StepState
from stage_runtime.scripts.noise import generator_of

log = logging.getLogger(__name__)

PREPARE: Final = "model.prepare_encode"
DENOISE: Final = "model.denoise_step"
DECODE: Final = "model.post_decode"
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

    def start(self, requests: Sequence[Request]) -> Sequence[StepState]:
        """`prepare_encode` with fresh generators: one that a failed call has drawn from would give other noise."""
        newcomers = [Newcomer(request, generator_of(request, self.model.device)) for request in requests]
        return self.model.prepare_encode(newcomers)

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
        """`run` for each group of equal keys, in the order in which each group's first item stands."""
        answers: list[B | Exception] = [ModelError("not run")] * len(items)
        groups: dict[Hashable, list[int]] = {}
        for place, item in enumerate(items):
            alone = not self.merge or len(items) == 1
            try:
                groups.setdefault((place,) if alone else key(item), []).append(place)
            except Exception as error:  # noqa: BLE001 - it fails that request, and no other
                self.on_fault(error)
                answers[place] = error
        for places in groups.values():
            group = [items[place] for place in places]
            for place, answer in zip(places, self._together(name, group, run), strict=True):
                answers[place] = answer
        return answers

    def _together(
        self, name: str, group: Sequence[A], run: Callable[[Sequence[A]], Sequence[B]]
    ) -> Sequence[B | Exception]:
        began_s = time.perf_counter()
        try:
            answers = run(group)
            if len(answers) != len(group):
                raise ModelError(f"{name} gave {len(answers)} answers for {len(group)} requests")
        except Exception as error:  # noqa: BLE001 - whatever a model raises, its neighbours go on
            self.on_fault(error)
            if len(group) == 1:
                return [error]
            log.warning(
                "a joint call failed; its members run alone",
                extra={"component": name, "why": words_of(error)[:200]},
            )
            return [answer for one in group for answer in self._together(name, [one], run)]
        finally:
            self.counts.note(name, len(group), time.perf_counter() - began_s)
        return answers
