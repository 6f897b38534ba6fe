"""A request can be played again up to where it was: to go on elsewhere, or to show how far it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.outcome import Completed, Progressed
from stage_runtime.runner.output import PIXELS
from stage_runtime.runner.step_walk import StepWalk
from stage_runtime.scripts.private_pipeline import open_script
from stage_runtime.scripts.replay import Recording, can_interrupt
from stage_runtime.scripts.script import AT_STEP, Call
from support.hub_stage import HubStage, array, ask, plain
from support.toy_pipeline import BASE, WritingDenoiser, toy

if TYPE_CHECKING:
    from conftest import Family


def seeded(seed: int) -> Any:
    """A generator."""
    import torch

    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_request_resumed_from_a_checkpoint_ends_bitwise_as_if_it_had_never_stopped(
    family: Family, after: int
) -> None:
    request = ask(family.base, "a", "a green square beside a tree", steps=6, seed=5)
    stage = HubStage.of(family.pipeline, family.base)
    runner = stage.worker.runner
    runner.add(request)
    for _ in range(after):
        runner.tick(["a"])
    checkpoint = runner.checkpoint("a")
    runner.forget(["a"])
    before = dict(stage.counts.calls)
    runner.add(request, checkpoint)
    told = []
    while not isinstance(outcome := runner.tick(["a"])[-1], Completed):
        assert isinstance(outcome, Progressed)
        told.append(outcome.step)
    assert told == list(range(after + 1, 6))
    assert np.array_equal(array(outcome.output), plain(family.pipeline, request))
    denoiser = f"{stage.capability.denoisers[0]}.forward"
    calls_a_step = before[denoiser] // after
    assert stage.counts.calls[denoiser] - before[denoiser] == calls_a_step * (6 - after)


def test_a_preview_shows_the_latents_of_its_step_and_leaves_the_request_as_it_was(family: Family) -> None:
    request = ask(family.base, "a", "a green square beside a tree", steps=4, seed=5, preview_steps=(1, 3))
    stage = HubStage.of(family.pipeline, family.base, output=PIXELS)
    stage.arrive(request)
    done = stage.run()["a"]
    previews = [o for o in stage.told if isinstance(o, Progressed) and o.preview is not None]
    assert [(o.step, o.preview_index) for o in previews] == [(1, 0), (3, 1)]
    assert isinstance(done, Completed)
    assert {o.preview.shape for o in previews if o.preview is not None} == {done.output.shape}
    undisturbed = HubStage.of(family.pipeline, family.base, output=PIXELS)
    undisturbed.arrive(ask(family.base, "a", "a green square beside a tree", steps=4, seed=5))
    alone = undisturbed.run()["a"]
    assert isinstance(alone, Completed)
    assert done.output == alone.output
    assert stage.held()["scripts"] == 0 or stage.tick() == []


def test_the_preview_of_the_last_step_is_the_final_output(family: Family) -> None:
    """Proven anew at each load; here that the proof was made and held."""
    stage = HubStage.of(family.pipeline, family.base, output=PIXELS)
    assert stage.capability.resumable, stage.capability.reason
    request = ask(family.base, "a", "a green square", steps=3, seed=5)
    runner = stage.worker.runner
    runner.add(request)
    runner.tick(["a"])
    runner.tick(["a"])
    hub, script = runner._hub, runner._hub.scripts["a"]
    while script.steps < 3 or script.pending is AT_STEP:
        hub.serve([script])
    checkpoint = runner.checkpoint("a")
    decoding = runner._factory.open("last", request.arguments, seeded(5), checkpoint, decode_only=True)
    hub.run(["last"])
    (done,) = runner.tick(["a"])
    assert isinstance(done, Completed)
    assert PIXELS.convert(decoding.result, None) == PIXELS.convert(script.result, None)


def test_the_step_protocol_is_a_view_of_the_park_points(family: Family) -> None:
    stage = HubStage.of(family.pipeline, family.base)
    request = ask(family.base, "a", "a green square beside a tree", steps=4, seed=5)
    script = open_script(
        family.pipeline, "a", {**request.arguments, "output_type": "latent", "generator": seeded(5)}
    )
    walk = StepWalk(stage.worker.runner._hub, script)
    walk.prepare_encode()
    while not walk.denoised:
        steps = walk.steps
        assert walk.denoise_step() >= 1
        assert walk.steps == steps
        walk.step_scheduler()
        assert walk.steps == steps + 1
    result = next(iter(walk.post_decode().values()))
    assert walk.steps == 4
    assert np.array_equal(np.asarray(result), plain(family.pipeline, request))


def test_a_request_can_be_stopped_early_and_shows_what_it_has(family: Family) -> None:
    stage = HubStage.of(family.pipeline, family.base, output=PIXELS)
    stage.arrive(ask(family.base, "a", "a cat", steps=6, seed=1))
    stage.tick()
    if not can_interrupt(family.pipeline):
        with pytest.raises(InvalidRequest, match="can't stop early"):
            stage.worker.runner.stop_early("a")
        return
    stage.worker.runner.stop_early("a")
    done = stage.run()["a"]
    assert isinstance(done, Completed)
    assert done.steps == 2


def test_a_checkpoint_is_small_and_does_not_grow_with_the_steps_done() -> None:
    stage = HubStage.of(toy(), BASE)
    runner = stage.worker.runner
    runner.add(ask(BASE, "a", "a cat", steps=20, seed=1))
    sizes = []
    for _ in range(19):
        runner.tick(["a"])
        sizes.append(len(runner.checkpoint("a").kept))
    assert set(sizes) == {1}


def test_a_model_that_edits_its_arguments_gives_no_checkpoint() -> None:
    stage = HubStage.of(toy(denoiser=WritingDenoiser), BASE)
    stage.worker.runner.add(ask(BASE, "a", "a cat", steps=4, seed=1))
    stage.worker.runner.tick(["a"])
    with pytest.raises(InvalidRequest, match="writes to its arguments"):
        stage.worker.runner.checkpoint("a")


def test_a_recording_without_steps_refuses_a_checkpoint() -> None:
    from stage_runtime.core.errors import InternalError

    pipeline = toy()
    script = open_script(pipeline, "a", {"prompt": "a cat", "generator": seeded(1)})
    script.watcher = recording = Recording({"transformer"}, [])
    script.start()
    with pytest.raises(InternalError, match="not at a point"):
        recording.checkpoint(script)
    script.abort()


def test_blanks_are_on_the_devices_of_what_they_stand_for() -> None:
    """Equal shapes on two devices: the second kind here is torch's meta device, which every machine has."""
    script = open_script(toy(), "a", {"prompt": "a cat", "generator": seeded(1)})
    script.start()
    call = script.pending
    assert isinstance(call, Call)
    recording = Recording({"transformer"}, [])
    for device in ("cpu", "meta", "cpu"):
        recording.called(call, (torch.empty(1, 2, device=device),))
    recording.stepped(script, SimpleNamespace(), lambda: (torch.empty(1, 2),))
    answers = recording.checkpoint(script).answers
    assert [answer[0].device.type for answer in answers] == ["cpu", "meta", "cpu"]
    script.abort()
