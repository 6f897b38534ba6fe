"""An output that is made in pieces comes in pieces, through the same request's stream, to whoever wants it so."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stage_runtime.core.control import StopEarly
from stage_runtime.core.outcome import Completed, Failed, Outcome, Progressed
from stage_runtime.runner.base import RunnerOptions
from support.chunked_model import UNLUCKY, ClipModel
from support.hub_stage import HubStage
from support.step_models import digit, step_stage


def clips(*seeds: int, chunks: bool = True, steps: int = 5) -> HubStage:
    """A stage with a request a seed, named after it."""
    stage = step_stage(ClipModel(), options=RunnerOptions())  # type: ignore[arg-type]
    asked = [replace(digit(str(seed), "7", steps=steps, seed=seed), chunks=chunks) for seed in seeds]
    stage.arrive(*asked)
    return stage


def pieces(told: Sequence[Outcome], name: str) -> list[Progressed]:
    return [o for o in told if isinstance(o, Progressed) and o.request_id == name and o.chunk]


def test_chunks_come_in_order_while_the_rest_is_made_and_the_whole_begins_with_them() -> None:
    stage = clips(1, 2)
    done = stage.run()
    for name in ("1", "2"):
        whole, found = done[name], pieces(stage.told, name)
        assert isinstance(whole, Completed)
        assert whole.output.shape[0] == 5
        assert [(one.step, one.preview_index) for one in found] == [(2, 0), (4, 1)]
        assert all(one.preview is not None and one.preview.shape[0] == 2 for one in found)
        joined = b"".join(one.preview.data for one in found if one.preview is not None)
        assert whole.output.data.startswith(joined)
    assert stage.counts.merged["model.new_chunks"] == 4


def test_the_last_chunk_comes_with_the_whole_and_an_early_stop_ends_them() -> None:
    stage = clips(1, steps=4)
    assert isinstance(stage.run()["1"], Completed)
    assert [one.step for one in pieces(stage.told, "1")] == [2]
    stopped = clips(1, steps=9)
    for _ in range(3):
        stopped.tick()
    stopped.worker.control(StopEarly("1"))
    done = stopped.run()["1"]
    assert isinstance(done, Completed)
    assert done.output.shape[0] == done.steps == 3


def test_who_asks_for_none_gets_none() -> None:
    stage = clips(1, chunks=False)
    assert isinstance(stage.run()["1"], Completed)
    assert pieces(stage.told, "1") == []
    assert "model.new_chunks" not in stage.counts.calls


def test_a_model_that_makes_none_gives_its_final_output_only() -> None:
    stage = step_stage()
    stage.arrive(replace(digit("a", "a red 7"), chunks=True))
    assert isinstance(stage.run()["a"], Completed)
    assert pieces(stage.told, "a") == []


def test_a_chunk_that_cannot_be_had_ends_its_request_and_no_neighbour() -> None:
    stage = clips(1, UNLUCKY)
    done = stage.run()
    failure = done[str(UNLUCKY)]
    assert isinstance(failure, Failed)
    assert "a frame was lost" in failure.message
    assert isinstance(done["1"], Completed)
    assert len(pieces(stage.told, "1")) == 2
    stage.tick()
    assert stage.held() == {"states": 0}


def test_a_step_that_ends_a_chunk_shows_it_in_place_of_a_preview() -> None:
    stage = step_stage(ClipModel(), options=RunnerOptions())  # type: ignore[arg-type]
    stage.arrive(replace(digit("a", "7", steps=5), chunks=True, preview_steps=(2, 3)))
    stage.run()
    shown = [(o.step, o.chunk) for o in stage.told if isinstance(o, Progressed) and o.preview is not None]
    assert shown == [(2, True), (3, False), (4, True)]
