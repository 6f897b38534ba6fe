"""A request that outlives its script: record what a run did, and run it again from the start up to where it was.

A checkpoint holds what the schedulers last returned, the state of schedulers, guiders and generators, and the shapes
of the answers so far. A replay plays the same pipeline with the same arguments; calls already made are answered with
blanks of those shapes, scheduler steps with what the checkpoint holds, and at the last of those steps the state is
put back. From there on everything is real. Previews, preemption and resuming elsewhere are this one piece.

A checkpoint is taken while a script waits at a denoiser call, never between two scheduler steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.scripts.intercepted import Intercepted
from stage_runtime.scripts.private_pipeline import is_pipeline, stateful_parts
from stage_runtime.scripts.script import Call, Script, Together
from stage_runtime.scripts.tensor_tree import blanks, clone, fill

NoiseState = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a request is. Independent in size of how far that is, but for a few bytes of shapes a call."""

    steps: int
    """Done of those that its client asked for."""
    turns: int
    """Done of the pipeline's loops."""
    answers: tuple[Any, ...]
    """Shapes of what each component call returned, in order."""
    step_results: tuple[Any, ...]
    """Shapes of what each scheduler step returned, in order."""
    kept: dict[int, tuple[Any, NoiseState]]
    """Step → its result and the state it left the generators in: each scheduler's last step, and those since the
    last denoiser call."""
    schedulers: tuple[dict[str, Any], ...]
    guiders: tuple[dict[str, Any], ...]

    @property
    def latents(self) -> Any:
        """What the last scheduler step returned."""
        return self.kept[self.scheduler_steps - 1][0]

    @property
    def scheduler_steps(self) -> int:
        """Steps that the schedulers have made, one or several a turn."""
        return len(self.step_results)

    def shortened(self, denoiser_calls: int) -> Checkpoint:
        """The same latents as if one step had been asked for, for pipelines that can't be interrupted."""
        return replace(
            self,
            steps=1,
            turns=1,
            answers=self.answers[:denoiser_calls],
            step_results=((denoiser_calls, self.step_results[0][1]),),
            kept={0: self.kept[self.scheduler_steps - 1]},
        )

    def up_to_last_step(self) -> Checkpoint:
        """Without the answers that came after the last scheduler step, which decoding it doesn't ask for."""
        return replace(self, answers=self.answers[: self.step_results[-1][0]])


class Recording:
    """Watches a script's calls and steps, and replays those of `start` first.

    `decode_only` skips to the decoding of the checkpoint's latents: encoders are answered with blanks too, and the
    pipeline is interrupted after the last replayed step.
    """

    __slots__ = (
        "_answers",
        "_decode_only",
        "_denoisers",
        "_generators",
        "_kept_last",
        "_recent",
        "_schedulers",
        "_shapes",
        "_start",
        "_step_results",
        "_taken",
    )

    def __init__(
        self,
        denoisers: Collection[str],
        generators: Sequence[torch.Generator],
        start: Checkpoint | None = None,
        *,
        decode_only: bool = False,
    ) -> None:
        if decode_only and start is not None:
            start = start.up_to_last_step()
        self._denoisers, self._generators, self._start, self._decode_only = (
            denoisers,
            generators,
            start,
            decode_only,
        )
        self._answers: list[Any] = []
        self._step_results: list[Any] = []
        self._schedulers: list[Any] = []
        self._kept_last: dict[int, int] = {}
        """Scheduler → its last step; kept beside `_recent` in `_taken`."""
        self._recent: list[int] = []
        self._taken: dict[int, tuple[Any, NoiseState]] = {}
        self._shapes: dict[tuple[torch.Size, torch.dtype, torch.device], Any] = {}

    @property
    def first_step_calls(self) -> int:
        """Component calls made before the first scheduler step returned; valid after it."""
        return self._step_results[0][0] if self._step_results else 0

    def replayed(self, call: Call) -> tuple[Any] | None:
        """The answer to a call that the checkpoint covers; None for a real one."""
        if self._start is None:
            return None
        if isinstance(call, Together):
            return self._replayed_together(call)
        at = len(self._answers)
        if at >= len(self._start.answers):
            return None
        if call.component not in self._denoisers and not self._decode_only:
            return None
        shape = self._start.answers[at]
        self._answers.append(shape)
        return (fill(shape),)

    def _replayed_together(self, together: Together) -> tuple[list[Any]] | None:
        answers = [answer for call in together.calls if (answer := self.replayed(call)) is not None]
        if not answers:
            return None
        if len(answers) < len(together.calls):
            raise InternalError("a checkpoint lies between two calls that are answered together")
        return ([answer for (answer,) in answers],)

    def called(self, call: Call, value: Any) -> None:
        """Note the answer to a real call."""
        if isinstance(call, Together):
            for one, its in zip(call.calls, value, strict=True):
                self.called(one, its)
            return
        self._answers.append(self._shape(value))
        if call.component in self._denoisers:
            for step in self._recent:
                if step not in self._kept_last.values():
                    self._taken.pop(step, None)
            self._recent.clear()

    def stepped(self, script: Script, scheduler: Any, real: Callable[[], Any]) -> Any:
        """Carry out one scheduler step, or replay it."""
        who = self._index(scheduler)
        step = len(self._step_results)
        start = self._start
        if start is not None and step < start.scheduler_steps:
            return self._replay_step(script, start, who, step)
        result = real()
        self._keep(who, step, result, tuple(generator.get_state() for generator in self._generators))
        return result

    def _replay_step(self, script: Script, start: Checkpoint, who: int, step: int) -> Any:
        if step == start.scheduler_steps - 1:
            self._put_back(script, start)
        kept = start.kept.get(step)
        if kept is None:
            self._step_results.append(start.step_results[step])
            return fill(start.step_results[step][1])
        result, noise = kept
        for generator, state in zip(self._generators, noise, strict=True):
            generator.set_state(state)
        self._keep(who, step, result, noise)
        return clone(result)  # pipelines edit latents in place, and these are another script's too

    def _put_back(self, script: Script, start: Checkpoint) -> None:
        if self._decode_only:
            interrupt(script.pipeline)
            return
        guiders = stateful_parts(script.pipeline)[1]
        for part, state in zip(
            [*self._schedulers, *guiders], [*start.schedulers, *start.guiders], strict=True
        ):
            vars(part).update(copy.deepcopy(state))

    def _shape(self, value: Any) -> Any:
        """The blanks of `value`; most answers are one tensor in a tuple, of the shape of the step before."""
        if type(value) is not tuple or len(value) != 1 or not isinstance(value[0], torch.Tensor):
            return blanks(value)
        key = value[0].shape, value[0].dtype, value[0].device
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = blanks(value)
        return known

    def _index(self, scheduler: Any) -> int:
        for index, known in enumerate(self._schedulers):
            if known is scheduler:
                return index
        self._schedulers.append(scheduler)
        return len(self._schedulers) - 1

    def _keep(self, who: int, step: int, result: Any, noise: NoiseState) -> None:
        self._step_results.append((len(self._answers), self._shape(result)))
        before = self._kept_last.get(who)
        if before is not None and before not in self._recent:
            self._taken.pop(before, None)
        self._kept_last[who] = step
        self._recent.append(step)
        self._taken[step] = (result, noise)

    def checkpoint(self, script: Script) -> Checkpoint:
        """How far the script is. Raises: InternalError unless it waits at a denoiser call, after at least one step."""
        if not isinstance(script.pending, Call) or not self._step_results:
            raise InternalError(
                f"request {script.request_id} is not at a point where a checkpoint can be taken"
            )
        guiders = stateful_parts(script.pipeline)[1]
        return Checkpoint(
            steps=script.steps,
            turns=script.turns,
            answers=tuple(self._answers),
            step_results=tuple(self._step_results),
            kept={step: (clone(result), noise) for step, (result, noise) in self._taken.items()},
            schedulers=tuple(_state(scheduler) for scheduler in self._schedulers),
            guiders=tuple(_state(guider) for guider in guiders),
        )


def _state(part: Any) -> dict[str, Any]:
    return {
        name: copy.deepcopy(value) for name, value in vars(part).items() if not isinstance(value, Intercepted)
    }


def can_interrupt(pipeline: Any) -> bool:
    """True when the pipeline's loop can be told to skip its remaining steps."""
    return isinstance(getattr(type(pipeline), "interrupt", None), property)


def interrupt(pipeline: Any) -> None:
    """Have a request's pipeline, and those nested in it, skip their remaining steps."""
    pipeline._interrupt = True
    for name, value in vars(pipeline).items():
        if name != "_components_manager" and is_pipeline(value):
            interrupt(value)
