"""Answers that come from outside, seen by all ranks of a copy in one order: the leader asks, and the others are told.

A component that is answered in another process or pod answers one rank, at a moment that no other rank knows of. So
only the leader has the target; whenever it is polled, the ranks meet in a frame, and each goes on with the answers
that the leader has had by then.

Facts, from the leader: a list of [number of the call, containers of its answer, leaves] or [number, error]; the calls
are numbered as they were submitted, which is alike on all ranks. Gathered on the copy's data group, from the leader:
the tensors of those answers, contiguous, dtype and shape as the leaves say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from stage_runtime.core.error_codec import Raised, decoded, encoded, words_of
from stage_runtime.core.errors import InternalError, RequestFailed, StageError
from stage_runtime.parallel.answer_wire import Leaves, containers, flatten, gathered, refilled
from stage_runtime.parallel.collectives import Collectives
from stage_runtime.parallel.lockstep import Lockstep
from stage_runtime.scripts.script import Call
from stage_runtime.scripts.target import Answer, OnAnswer, Target

MOST_WAIT_S: Final = 1.0
"""So long the leader waits for an answer before the ranks meet again: a wait in a collective has a deadline."""


class LeaderTarget:
    """`inner`: what is asked; on the leader only."""

    def __init__(self, inner: Target | None, control: Lockstep, wire: Collectives) -> None:
        if (inner is not None) is not (wire.index == 0):
            raise InternalError(f"rank {wire.rank} asks, and place 0 of its group leads")
        self._inner, self._control, self._wire = inner, control, wire
        self._numbers: dict[int, Call] = {}
        """Calls that are not answered yet."""
        self._last = 0

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls, each of which every rank submits."""
        for call in calls:
            self._last += 1
            call.shared = False  # the leader makes it for itself
            self._numbers[self._last] = call
        if self._inner is not None:
            self._inner.submit(calls)

    def poll(self, timeout_s: float | None = None) -> Sequence[Answer]:
        """What the leader has had; every rank polls at the same place. Raises: EngineDeadError, EngineHung."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._numbers:
            left_s = (
                MOST_WAIT_S if until_s is None else min(MOST_WAIT_S, max(0.0, until_s - time.monotonic()))
            )
            said, payload = ([], []) if self._inner is None else self._asked(self._inner, left_s)
            over = until_s is not None and left_s < MOST_WAIT_S
            frames = self._control.exchange("told", {"answers": said, "over": over})
            facts = frames[0].facts
            leaves: list[list[Any]] = [[] for _ in frames]
            leaves[0] = [leaf for one in facts["answers"] if len(one) == 3 for leaf in one[2]]
            received = gathered(self._wire, payload, leaves)[0]
            if facts["answers"] or facts["over"]:
                return self._told(facts["answers"], received)
        return []

    def wake_by(self, wake: OnAnswer) -> None:
        """The leader is woken, and the others meet it in the next frame."""
        if self._inner is not None:
            self._inner.wake_by(wake)

    def forget(self, request_id: str) -> None:
        """Drop the request's calls, on every rank at the same place."""
        for number in [n for n, call in self._numbers.items() if call.script.request_id == request_id]:
            del self._numbers[number]
        if self._inner is not None:
            self._inner.forget(request_id)

    def _asked(self, inner: Target, timeout_s: float) -> tuple[list[Any], list[torch.Tensor]]:
        """What there is to tell, and the tensors of it."""
        numbers = {id(call): number for number, call in self._numbers.items()}
        said: list[Any] = []
        payload: list[torch.Tensor] = []
        for call, value, error in inner.poll(timeout_s):
            number = numbers.get(id(call))
            if number is None:
                continue  # forgotten meanwhile
            if error is None:
                try:
                    leaves, found = flatten(value)
                    said.append([number, containers(value), leaves])
                    payload += found
                    continue
                except InternalError as untold:
                    error = untold
            told = error if isinstance(error, StageError) else RequestFailed(words_of(error))
            said.append([number, msgspec.to_builtins(encoded(told))])
        return said, payload

    def _told(self, said: Sequence[Any], payload: torch.Tensor) -> list[Answer]:
        answers = []
        at = 0
        for number, *what in said:
            call = self._numbers.pop(number)
            if len(what) == 1:
                answers.append(Answer(call, error=decoded(msgspec.convert(what[0], Raised))))
                continue
            leaves = Leaves(what[1], payload, at)
            answers.append(Answer(call, refilled(what[0], leaves)))
            at = leaves.end
        return answers
