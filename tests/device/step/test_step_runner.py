"""A model outside diffusers under the same waves: batched with whoever fits, kept apart in all that is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from stage_runtime.core.control import Sleep, Wake
from stage_runtime.core.errors import DeviceLost, InternalError, InvalidRequest
from stage_runtime.core.outcome import Aborted, Completed, Computed, Failed, Progressed
from stage_runtime.pipelines.families.digits.model import DigitsModel
from stage_runtime.pipelines.step_model import Newcomer
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import Made
from stage_runtime.runner.step_runner import StepRunner
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.worker.faults import FaultProbe
from support.hub_stage import HubStage, array
from support.step_models import (
    FLOATS,
    ApartByGuidance,
    BrokenDecoder,
    BrokenDenoiser,
    BrokenSolver,
    OutOfMemoryTogether,
    a_model,
    digit,
    step_stage,
    step_worker,
)

ALONE = RunnerOptions(merge=False, output=FLOATS)
ROUNDING = 1e-4
"""Of pictures in 0..1, in float32."""
ASKED = (
    digit("a", "a red 7", steps=3, seed=11),
    digit("b", "the number four", steps=6, seed=22, guidance_scale=1.0),
    digit("c", "blue", steps=4, seed=33, guidance_scale=3.5),
)


@pytest.fixture(scope="module")
def lone() -> dict[str, np.ndarray]:
    """What each gives when it is the only one."""
    outputs = {}
    for request in ASKED:
        stage = step_stage()
        stage.arrive(request)
        outputs |= stage.outputs()
    return outputs


def runner_of(stage: HubStage) -> StepRunner:
    runner = stage.worker.runner
    assert isinstance(runner, StepRunner)
    return runner


@pytest.mark.invariant("BATCH-INV-002")
def test_interleaved_requests_are_bitwise_equal_when_each_call_runs_alone(
    lone: dict[str, np.ndarray],
) -> None:
    stage = step_stage(options=ALONE)
    stage.arrive(*ASKED)
    outputs = stage.outputs()
    assert all(np.array_equal(outputs[name], lone[name]) for name in "abc")
    assert not stage.counts.merged


@pytest.mark.invariant("BATCH-INV-002")
def test_requests_that_share_calls_differ_from_each_alone_by_rounding_only(
    lone: dict[str, np.ndarray],
) -> None:
    stage = step_stage()
    stage.arrive(*ASKED)
    outputs = stage.outputs()
    assert all(np.abs(outputs[name] - lone[name]).max() <= ROUNDING for name in "abc")


@pytest.mark.invariant("BATCH-INV-004")
def test_each_runs_its_own_number_of_steps_in_as_few_calls_as_the_longest_needs() -> None:
    stage = step_stage()
    stage.arrive(*ASKED)
    ended = stage.run()
    assert {name: o.steps for name, o in ended.items() if isinstance(o, Completed)} == {
        "a": 3,
        "b": 6,
        "c": 4,
    }
    assert stage.counts.calls["model.denoise_step"] == 6
    assert stage.counts.rows["model.denoise_step"] == 3 + 6 + 4
    assert stage.counts.calls["model.prepare_encode"] == 1


def test_a_late_request_joins_at_the_next_step(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage()
    stage.arrive(ASKED[1])
    stage.tick()
    stage.arrive(ASKED[2])
    outputs = stage.outputs()
    assert stage.counts.calls["model.denoise_step"] == 6
    assert stage.counts.merged["model.denoise_step"] == 4
    assert np.abs(outputs["c"] - lone["c"]).max() <= ROUNDING


def test_in_request_mode_a_late_request_waits_for_the_next_wave(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage(scheduler=RequestScheduler)
    stage.arrive(ASKED[1])
    stage.tick()
    stage.arrive(ASKED[2])
    outputs = stage.outputs()
    assert "model.denoise_step" not in stage.counts.merged
    assert all(np.array_equal(outputs[name], lone[name]) for name in "bc")


def test_states_with_unlike_batch_keys_run_apart() -> None:
    stage = step_stage(a_model(ApartByGuidance))
    stage.arrive(*ASKED)
    assert all(isinstance(outcome, Completed) for outcome in stage.run().values())
    # the unguided one by itself six times, the two others together until the shorter one has ended
    assert stage.counts.merged["model.denoise_step"] == 3
    assert stage.counts.calls["model.denoise_step"] == 6 + 4


def test_progress_counts_each_step_of_each_request() -> None:
    stage = step_stage()
    stage.arrive(*ASKED)
    stage.run()
    told = [(o.request_id, o.step, o.steps) for o in stage.told if isinstance(o, Progressed)]
    assert [one for one in told if one[0] == "a"] == [("a", 1, 3), ("a", 2, 3)]
    assert len(told) == 2 + 5 + 3


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_an_abort_between_two_steps_leaves_nothing_and_moves_nobody(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage(options=ALONE)
    stage.arrive(*ASKED)
    stage.tick()
    stage.abort("b")
    outputs = stage.outputs()
    assert isinstance(stage.told[-1], Completed)
    assert [o.request_id for o in stage.told if isinstance(o, Aborted)] == ["b"]
    assert all(np.array_equal(outputs[name], lone[name]) for name in "ac")
    assert stage.held() == {"states": 0}


def test_previews_come_at_the_steps_asked_for_and_show_the_picture_to_be() -> None:
    stage = step_stage()
    stage.arrive(digit("a", "a white 3", steps=8, seed=5, partial_images=3))
    final = stage.outputs()["a"]
    drawn = [o for o in stage.told if isinstance(o, Progressed) and o.preview is not None]
    assert [(o.step, o.preview_index) for o in drawn] == [(2, 0), (4, 1), (6, 2)]
    gaps = [np.abs(array(o.preview) - final).mean() for o in drawn if o.preview is not None]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.05


def test_a_preview_changes_no_picture() -> None:
    with_previews, without = step_stage(), step_stage()
    with_previews.arrive(digit("a", "a white 3", seed=5, partial_images=2))
    without.arrive(digit("a", "a white 3", seed=5))
    assert np.array_equal(with_previews.outputs()["a"], without.outputs()["a"])


@pytest.mark.invariant("BATCH-INV-002")
@pytest.mark.parametrize("kind", [BrokenDenoiser, BrokenSolver, BrokenDecoder])
def test_a_member_that_fails_in_a_shared_call_fails_alone(kind: type[DigitsModel]) -> None:
    stage = step_stage(a_model(kind))
    stage.arrive(digit("a", "1", seed=1), digit("bad", "8", seed=2), digit("c", "3", seed=3))
    ended = stage.run()
    bad = ended["bad"]
    assert isinstance(bad, Failed)
    assert (bad.status, bad.code) == (500, "request_failed")
    assert "met an eight" in bad.message
    assert isinstance(ended["a"], Completed)
    assert isinstance(ended["c"], Completed)
    assert stage.held() == {"states": 0}


def test_a_preview_that_fails_is_left_out_and_the_request_goes_on() -> None:
    stage = step_stage(a_model(BrokenDecoder))
    stage.arrive(digit("a", "8", steps=4, partial_images=1))
    outcomes = [outcome for _ in range(3) for outcome in stage.tick()]
    assert [type(outcome) for outcome in outcomes] == [Progressed] * 3
    assert all(outcome.preview is None for outcome in outcomes if isinstance(outcome, Progressed))


def test_a_prompt_that_the_model_cant_draw_is_the_clients_fault_and_nobody_elses() -> None:
    stage = step_stage()
    stage.arrive(digit("a", "a red 7"), digit("bad", "a red circle"))
    ended = stage.run()
    bad = ended["bad"]
    assert isinstance(bad, Failed)
    assert (bad.status, bad.code, bad.field) == (400, "invalid_request", "prompt")
    assert isinstance(ended["a"], Completed)


def test_a_neighbour_that_cant_be_prepared_changes_nobodys_noise(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage()
    stage.arrive(ASKED[0], digit("bad", "a red circle"))
    assert np.array_equal(stage.outputs()["a"], lone["a"])


class GivesNoStates(DigitsModel):
    """Prepares something else, once it is told what."""

    instead: Any = None

    def prepare_encode(self, newcomers: Sequence[Newcomer]) -> Any:
        return super().prepare_encode(newcomers) if self.instead is None else self.instead


@pytest.mark.parametrize("instead", [5, [5, 5], [None], "ab", {}, torch.zeros(2)], ids=repr)
def test_what_is_no_state_fails_its_requests_and_later_ones_are_served(instead: Any) -> None:
    model = a_model(GivesNoStates)
    stage = step_stage(model)
    model.instead = instead
    stage.arrive(digit("a", "a red 7"), digit("b", "a red 8"))
    assert {type(end) for end in stage.run().values()} == {Failed}
    assert set(stage.held().values()) == {0}
    model.instead = None
    stage.arrive(digit("c", "a red 7"))
    assert isinstance(stage.run()["c"], Completed)


def test_a_generators_state_that_is_none_fails_its_own_request() -> None:
    stage = step_stage()
    stage.arrive(digit("a", "7"), digit("bad", "7", seed=None, generator_state=b"none"))  # type: ignore[arg-type]
    ended = stage.run()
    assert isinstance(ended["bad"], Failed)
    assert isinstance(ended["a"], Completed)


def test_a_request_without_memory_fails_with_507() -> None:
    stage = step_stage(a_model(OutOfMemoryTogether))
    stage.arrive(digit("a", "1"), digit("big", "8"))
    ended = stage.run()
    big = ended["big"]
    assert isinstance(big, Failed)
    assert (big.status, big.code) == (507, "out_of_memory")
    assert isinstance(ended["a"], Completed)


def test_a_lost_device_is_no_requests_fault() -> None:
    def poisoned() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    stage = step_stage(a_model(BrokenDenoiser), faults=FaultProbe(poisoned))
    stage.arrive(digit("bad", "8"))
    with pytest.raises(DeviceLost):
        stage.tick()


def test_an_early_stop_skips_the_remaining_steps_and_gives_the_picture_so_far() -> None:
    stage = step_stage()
    stage.arrive(digit("a", "a white 3", steps=8, seed=5, partial_images=3), digit("b", "2", steps=8))
    for _ in range(4):
        stage.tick()
    stage.worker.runner.stop_early("a")
    ended = stage.run()
    stopped = ended["a"]
    assert isinstance(stopped, Completed)
    assert stopped.steps == 4
    seen = {o.step: o.preview for o in stage.told if isinstance(o, Progressed) and o.request_id == "a"}
    assert stopped.output == seen[4]
    assert isinstance(ended["b"], Completed)
    assert ended["b"].steps == 8


def test_a_request_that_has_not_begun_or_is_unknown_cant_stop_early() -> None:
    runner = step_worker().runner
    runner.add(digit("a", "7"))
    for request_id in ("a", "nobody"):
        with pytest.raises(InvalidRequest, match=f"request {request_id} is not running"):
            runner.stop_early(request_id)


def test_a_checkpoint_goes_on_elsewhere_to_the_same_bits(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage()
    stage.arrive(ASKED[2])
    stage.tick()
    stage.tick()
    start = runner_of(stage).checkpoint("c")
    elsewhere = runner_of(step_stage())
    elsewhere.add(ASKED[2], start)
    assert [type(outcome) for outcome in elsewhere.tick(["c"])] == [Progressed]
    (done,) = elsewhere.tick(["c"])
    assert isinstance(done, Completed)
    assert np.array_equal(array(done.output), lone["c"])


def test_a_generators_state_stands_for_its_seed(lone: dict[str, np.ndarray]) -> None:
    state = bytes(torch.Generator().manual_seed(11).get_state().numpy())
    stage = step_stage()
    stage.arrive(digit("a", "a red 7", steps=3, seed=None, generator_state=state))  # type: ignore[arg-type]
    assert np.array_equal(stage.outputs()["a"], lone["a"])


def test_an_output_that_is_packed_elsewhere_leaves_the_runner_unconverted() -> None:
    made: list[Made] = []
    deferring = step_worker(options=RunnerOptions(deliver=made.append)).runner
    own = step_worker().runner
    for runner in (deferring, own):
        runner.add(digit("a", "a red 7", steps=1))
    (computed,), (completed,) = deferring.tick(["a"]), own.tick(["a"])
    assert computed == Computed("a")
    assert isinstance(completed, Completed)
    assert [(one.request_id, one.steps) for one in made] == [("a", 1)]
    assert deferring.convert(made[0].result) == completed.output
    assert completed.output.shape == (32, 32, 3)


def test_weights_that_were_dropped_between_two_steps_are_read_again(lone: dict[str, np.ndarray]) -> None:
    stage = step_stage()
    stage.arrive(ASKED[0])
    stage.tick()
    freed = stage.worker.control(Sleep(level=2))
    assert freed == stage.worker.control(Wake())
    assert np.array_equal(stage.outputs()["a"], lone["a"])


def test_time_is_told_by_phase_and_adds_up() -> None:
    stage = step_stage()
    stage.arrive(ASKED[0])
    ended = stage.run()["a"]
    assert isinstance(ended, Completed)
    assert ended.phases is not None
    assert all(seconds > 0 for seconds in (ended.phases.prepare, ended.phases.denoise, ended.phases.decode))


def test_no_gradients_are_kept_and_none_are_left_switched_off() -> None:
    stage = step_stage()
    stage.arrive(ASKED[0])
    stage.tick()
    state = runner_of(stage).checkpoint("a")
    assert not state.noisy.requires_grad  # type: ignore[attr-defined]
    assert torch.is_grad_enabled()


def test_a_request_that_ended_gives_no_outcome_again() -> None:
    runner = step_worker().runner
    runner.add(digit("a", "7", steps=1))
    assert [type(outcome) for outcome in runner.tick(["a"])] == [Completed]
    assert runner.tick(["a"]) == []


@pytest.mark.parametrize(
    "misuse",
    [
        lambda runner: runner.tick(["nobody"]),
        lambda runner: [runner.add(digit("a", "7")) for _ in range(2)],
    ],
    ids=["an id that was never added", "an id that is taken"],
)
def test_a_broken_law_is_never_carried_on(misuse: Callable[[StepRunner], object]) -> None:
    with pytest.raises(InternalError):
        misuse(runner_of(step_stage()))


def test_closing_twice_is_no_error_and_lets_go_of_the_model() -> None:
    stage = step_stage()
    stage.arrive(ASKED[0])
    stage.tick()
    stage.executor.close()
    stage.executor.close()
    assert stage.held() == {"states": 0}
