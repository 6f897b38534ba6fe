"""What the hub adds to a component call of one request, in CPU time.

The denoiser answers at once, so what is left is the pipeline and what is around it. Two lengths of run are measured on
each side; their difference per call has nothing of what happens once a request. A step makes two calls (guidance) and
one scheduler step, which the hub waits for too: all its work of a step is counted for the two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engine.pictures import check_same
from benchmarks.engine.sides import EQUAL, Diffusers, Sides, Stage, pixels
from benchmarks.options import Options
from benchmarks.report import Row
from benchmarks.timing import Times, in_turn
from stage_api.spec import Mode
from stage_runtime.assemble_rank import pipeline_parts
from stage_runtime.core.outcome import Completed, Output
from stage_runtime.pipelines.arguments import small_arguments
from stage_runtime.runner.runner import Runner

AIM_US = 15.0
SHORT, LONG = 10, 110
CALLS_A_STEP = 2
CALLS_MORE = (LONG - SHORT) * CALLS_A_STEP
PROMPT, SEED = EQUAL[0], 0


def measure(options: Options, sides: Sides) -> list[Row]:
    """A row for the hub, and one for the engine and scheduler around it."""
    plain = sides.diffusers
    stage = sides.stages[Mode.STEP]
    runner = Runner(pipeline_parts(plain.pipeline, partial(small_arguments, stage.model)))
    with _stubbed(plain.pipeline.transformer), _stubbed(_denoiser_of(stage)):
        check(plain, runner, stage)
        draw: dict[str, Callable[[int], object]] = {
            "diffusers": lambda steps: plain.draw([PROMPT], [SEED], steps),
            "hub": lambda steps: _run(runner, stage, steps),
            "engine": lambda steps: stage.draw([PROMPT], [SEED], steps),
        }
        times = in_turn(
            {f"{who} {steps}": _always(draw[who], steps) for steps in (SHORT, LONG) for who in draw},
            options.rounds(60),
        )
    runner.close()
    per_call = {who: _per_call_us(times, who) for who in ("diffusers", "hub", "engine")}
    added = {who: _added_us(times, who, to) for who, to in (("hub", "diffusers"), ("engine", "hub"))}
    details = {
        "us_per_call_at_best": per_call,
        "times_ms": {name: one.per(1) for name, one in times.items()},
        "calls_a_step": CALLS_A_STEP,
    }
    return [
        Row(
            what="hub, a call of one request",
            value=added["hub"],
            by_cpu=added["hub"],
            unit="µs",
            aim=AIM_US,
            details=details,
        ),
        Row(
            what="engine and scheduler, a step of one request",
            value=added["engine"] * CALLS_A_STEP,
            unit="µs",
            details=details,
        ),
    ]


def check(plain: Diffusers, runner: Runner, stage: Stage) -> None:
    """Without a denoiser all three still draw the same nonsense."""
    theirs = [np.asarray(image) for image in plain.draw([PROMPT], [SEED], SHORT)]
    check_same("hub", [pixels(_run(runner, stage, SHORT))], theirs)
    check_same("engine", [pixels(output) for output in stage.draw([PROMPT], [SEED], SHORT)], theirs)


def _always(draw: Callable[[int], object], steps: int) -> Callable[[int], object]:
    return lambda _number: draw(steps)


def _run(runner: Runner, stage: Stage, steps: int) -> Output:
    """One request, tick by tick, without an engine."""
    (request,) = stage.requests([PROMPT], [SEED], steps)
    runner.add(request)
    while True:
        for outcome in runner.tick([request.request_id]):
            if isinstance(outcome, Completed):
                runner.forget([request.request_id])
                return outcome.output


def _added_us(times: dict[str, Times], who: str, to: str) -> float:
    """CPU time that `who` adds to a call of `to`: median of the rounds' differences."""
    grown = zip(*(_grown(times, one) for one in (who, to)), strict=True)
    return float(median(ours - theirs for ours, theirs in grown)) / CALLS_MORE * 1e6


def _per_call_us(times: dict[str, Times], who: str) -> float:
    """CPU time of a call more, from the best run of each length."""
    return (min(times[f"{who} {LONG}"].cpu) - min(times[f"{who} {SHORT}"].cpu)) / CALLS_MORE * 1e6


def _grown(times: dict[str, Times], who: str) -> list[float]:
    """CPU seconds that the long run took more than the short one, a round each."""
    long, short = times[f"{who} {LONG}"].cpu, times[f"{who} {SHORT}"].cpu
    return [more - less for more, less in zip(long, short, strict=True)]


@contextmanager
def _stubbed(denoiser: Any) -> Iterator[None]:
    """`denoiser` answers with its own input, at once."""
    denoiser.forward = lambda hidden_states, **_: (hidden_states,)
    try:
        yield
    finally:
        del denoiser.forward


def _denoiser_of(stage: Stage) -> Any:
    """The module that the engine's own runner calls."""
    return stage.engine._executor._worker.runner._batcher.modules["transformer"]  # type: ignore[union-attr]
