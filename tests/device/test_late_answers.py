"""Calls that are answered from elsewhere, when they are: nobody is waited for in particular, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stage_runtime.core.outcome import Completed, Progressed
from stage_runtime.runner.output import PIXELS
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.sched.step import StepScheduler
from support.hub_stage import HubStage, ask
from support.small_features import Elsewhere, LateTarget
from support.tiny_models import load_plain
from support.toy_pipeline import BASE, PickyDenoiser, ToyPipeline, toy

SHAPES = Path(__file__).parents[2] / "models" / "shapes" / "checkpoint"
BOTH = pytest.mark.parametrize("scheduler", [StepScheduler, RequestScheduler])
PATIENCE_S = 20.0  # for an answer of the other thread; it is there within milliseconds


@contextmanager
def served(
    pipeline: Any = None, base: dict[str, Any] = BASE, **options: Any
) -> Iterator[tuple[HubStage, LateTarget]]:
    """A stage whose calls another thread answers."""
    elsewhere = Elsewhere()
    stage = HubStage.of(pipeline or toy(), base, features=(elsewhere,), **options)
    target = elsewhere.target_there
    assert target is not None
    try:
        yield stage, target
    finally:
        target.let(*"abc", "a/preview-1")
        stage.executor.close()


def turn(stage: HubStage) -> None:
    """One turn of the loop, which sleeps until there is something to do."""
    stage.tick(time.monotonic() + PATIENCE_S)


def ended(stage: HubStage) -> dict[str, Any]:
    return {o.request_id: o for o in stage.told if not isinstance(o, Progressed)}


def run_until(stage: HubStage, *names: str) -> None:
    while not set(names) <= ended(stage).keys():
        turn(stage)


def numbers(stage: HubStage, name: str) -> np.ndarray:
    outcome = ended(stage)[name]
    assert isinstance(outcome, Completed), outcome
    return np.frombuffer(outcome.output.data, np.uint8)


def alone(name: str, steps: int) -> np.ndarray:
    stage = HubStage.of(toy(), BASE)
    stage.arrive(request(name, steps))
    stage.run()
    return numbers(stage, name)


def request(name: str, steps: int, prompt: str = "a cat") -> Any:
    return ask(BASE, name, prompt, steps=steps, seed=ord(name))


@BOTH
def test_who_is_answered_goes_on_while_another_waits(scheduler: type[BaseScheduler]) -> None:
    with served(scheduler=scheduler, merge=False) as (stage, target):
        target.hold("a")
        stage.arrive(request("a", 2), request("b", 5))
        run_until(stage, "b")
        assert "a" not in ended(stage)
        target.let("a")
        run_until(stage, "a")
        assert np.array_equal(numbers(stage, "a"), alone("a", 2))
        assert np.array_equal(numbers(stage, "b"), alone("b", 5))


def test_a_newcomer_starts_while_all_others_wait() -> None:
    with served(merge=False) as (stage, target):
        target.hold("a")
        stage.arrive(request("a", 3))
        stage.tick(time.monotonic())
        stage.arrive(request("b", 3))
        run_until(stage, "b")
        target.let("a")
        run_until(stage, "a")
        assert np.array_equal(numbers(stage, "a"), alone("a", 3))


@BOTH
def test_an_abort_while_it_waits_frees_all_and_its_late_answer_is_nobody_s(
    scheduler: type[BaseScheduler],
) -> None:
    with served(scheduler=scheduler, merge=False) as (stage, target):
        target.hold("a")
        stage.arrive(request("a", 3), request("b", 4))
        stage.tick(time.monotonic())
        stage.abort("a")
        run_until(stage, "b")
        target.let("a")
        stage.tick(time.monotonic())
        assert not any(stage.held().values())
        assert np.array_equal(numbers(stage, "b"), alone("b", 4))
        stage.told.clear()
        stage.arrive(request("a", 3))  # the same name again
        run_until(stage, "a")
        assert np.array_equal(numbers(stage, "a"), alone("a", 3))


def test_a_loop_with_nothing_to_move_sleeps_and_keeps_its_deadline() -> None:
    with served() as (stage, target):
        target.hold("a")
        stage.arrive(request("a", 3))
        stage.tick(time.monotonic())
        polls, began_s = target.polls, time.monotonic()
        stage.tick(began_s + 0.2)  # what is tried is that it sleeps so long
        assert 0.2 <= time.monotonic() - began_s < PATIENCE_S
        assert target.polls - polls <= 4


def test_an_answer_ends_the_sleep() -> None:
    with served() as (stage, target):
        target.hold("a")
        stage.arrive(request("a", 1))
        stage.tick(time.monotonic())
        letting = threading.Thread(target=target.let, args=("a",))
        letting.start()
        while "a" not in ended(stage):
            stage.tick(None)
        letting.join()
        assert np.array_equal(numbers(stage, "a"), alone("a", 1))


def test_an_error_from_elsewhere_ends_the_request_that_asked() -> None:
    with served(toy(ToyPipeline, PickyDenoiser)) as (stage, _):
        stage.arrive(request("a", 2, "poison"), request("b", 2))
        run_until(stage, "a", "b")
        assert "this prompt is poison" in ended(stage)["a"].message
        assert np.array_equal(numbers(stage, "b"), alone("b", 2))


def test_a_preview_that_is_decoded_late_holds_up_nobody_and_is_still_shown() -> None:
    base = {"height": 64, "width": 64, "true_cfg_scale": 1.0}
    with served(load_plain(SHAPES), base, output=PIXELS) as (stage, target):
        target.hold("a/preview-1")
        stage.arrive(ask(base, "a", "a red circle", steps=4, seed=1, preview_steps=(1,)))
        while not any(isinstance(o, Progressed) and o.step == 2 for o in stage.told):
            turn(stage)
        assert not any(isinstance(o, Progressed) and o.preview for o in stage.told)
        target.let("a/preview-1")
        run_until(stage, "a")
        stage.tick(time.monotonic())
        assert not any(stage.held().values())
