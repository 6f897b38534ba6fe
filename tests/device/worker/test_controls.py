"""What a worker does with control calls: each has one answer or one typed error, and none disturbs what runs."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stage_runtime.core.control import (
    Control,
    Health,
    Outstanding,
    Pause,
    ProfileStart,
    ProfileStop,
    ReadTrace,
    Resume,
    Wake,
)
from stage_runtime.core.errors import DeviceLost, InvalidRequest
from stage_runtime.executor.uni import UniExecutor
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.worker import _CONTROLS
from support.control_stage import a_worker, drawn, one, stage_of, two_dogs
from support.hub_stage import HubStage
from support.toy_pipeline import BASE


@pytest.fixture
def stage() -> HubStage:
    """A toy stage."""
    return stage_of(a_worker(rank=3))


def test_every_control_call_has_its_place_in_the_table() -> None:
    assert set(_CONTROLS) == set(Control.__args__)


def test_a_paused_worker_moves_nothing_and_goes_on_where_it_was(stage: HubStage) -> None:
    want = drawn(stage, BASE, "whole")
    stage.arrive(two_dogs(BASE, "halted"))
    stage.tick()
    stage.executor.control(Pause())
    assert stage.worker.tick() == []
    stage.executor.control(Resume())
    assert stage.outputs()["halted"].tobytes() == want


def test_pause_and_resume_twice_are_as_once(stage: HubStage) -> None:
    for call, paused in ((Pause(), True), (Pause(), True), (Resume(), False), (Resume(), False)):
        assert stage.executor.control(call) is None
        assert stage.worker.paused is paused


def test_a_paused_poll_ends_when_it_is_woken(stage: HubStage) -> None:
    stage.executor.control(Pause())
    stage.executor.wake()
    assert stage.executor.poll(None) == []


def test_health_says_which_rank_where_and_how(stage: HubStage) -> None:
    health = one(stage, Health())
    assert (health.rank, health.pid, health.device) == (3, os.getpid(), "cpu")
    assert (health.asleep, health.paused) == (False, False)
    weights = {p.data_ptr(): p.nbytes for p in stage.worker.runner._factory.pipeline.transformer.parameters()}
    assert health.allocated_bytes >= sum(weights.values())


def test_a_device_that_is_lost_is_noticed_by_asking_for_its_health() -> None:
    def lost() -> None:
        raise RuntimeError("unspecified launch failure")

    worker = a_worker()
    worker._faults = FaultProbe(lost)
    executor = UniExecutor(lambda: worker)
    with pytest.raises(DeviceLost):
        executor.control(Health())
    with pytest.raises(DeviceLost):
        executor.health()


def test_counting_what_is_held_counts_requests_and_nothing_else(stage: HubStage, tmp_path: Path) -> None:
    stage.executor.control(ProfileStart(str(tmp_path)))
    stage.executor.control(Pause())
    assert set(stage.executor.control(Outstanding()).values()) == {0}  # type: ignore[attr-defined]


def test_a_profile_spans_ticks_and_is_a_trace_of_this_rank(stage: HubStage, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    stage.arrive(two_dogs(BASE, "a"))
    stage.tick()
    assert one(stage, ProfileStart(str(folder))) is None
    stage.run()
    path = Path(one(stage, ProfileStop()))
    assert path.parent == folder
    assert path.name.startswith("rank3-")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert any("aten::" in str(event.get("name")) for event in events)
    assert list(folder.iterdir()) == [path]


def test_a_trace_is_read_in_pieces_by_its_own_rank_and_others_give_nothing(
    stage: HubStage, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="no profile has been recorded"):
        stage.executor.control(ReadTrace(3, 0))
    stage.executor.control(ProfileStart(str(tmp_path)))
    whole = Path(one(stage, ProfileStop())).read_bytes()
    assert one(stage, ReadTrace(3, 0)) == whole
    assert one(stage, ReadTrace(3, 10)) == whole[10:]
    assert one(stage, ReadTrace(3, len(whole))) == one(stage, ReadTrace(2, 0)) == b""
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(InvalidRequest, match="the trace can't be read"):
        stage.executor.control(ReadTrace(3, 0))


def test_a_profile_changes_no_picture(stage: HubStage, tmp_path: Path) -> None:
    want = drawn(stage, BASE, "plain")
    stage.executor.control(ProfileStart(str(tmp_path)))
    assert drawn(stage, BASE, "profiled") == want
    stage.executor.control(ProfileStop())


def test_two_profiles_at_once_are_refused_and_the_first_goes_on(stage: HubStage, tmp_path: Path) -> None:
    stage.executor.control(ProfileStart(str(tmp_path)))
    with pytest.raises(InvalidRequest, match="already"):
        stage.executor.control(ProfileStart(str(tmp_path)))
    assert Path(one(stage, ProfileStop())).is_file()


def test_stopping_a_profile_that_nobody_started_is_refused(stage: HubStage) -> None:
    with pytest.raises(InvalidRequest, match="no profile"):
        stage.executor.control(ProfileStop())


def test_a_folder_that_can_not_be_made_is_refused_with_its_path(stage: HubStage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = str(tmp_path / "file" / "folder")
    with pytest.raises(InvalidRequest, match=wrong) as refused:
        stage.executor.control(ProfileStart(wrong))
    assert refused.value.field == "folder"
    with pytest.raises(InvalidRequest, match="no profile"):
        stage.executor.control(ProfileStop())


def test_closing_ends_a_profile_that_still_runs(stage: HubStage, tmp_path: Path) -> None:
    stage.executor.control(ProfileStart(str(tmp_path)))
    stage.executor.close()
    assert list(tmp_path.iterdir()) == []
    again = stage_of(a_worker())
    again.executor.control(ProfileStart(str(tmp_path)))
    assert Path(one(again, ProfileStop())).is_file()


def test_a_call_that_is_refused_leaves_what_runs_alone(stage: HubStage) -> None:
    want = drawn(stage, BASE, "whole")
    stage.arrive(two_dogs(BASE, "a"))
    stage.tick()
    for call in (ProfileStop(), ProfileStart("/proc/nothing")):
        with pytest.raises(InvalidRequest):
            stage.executor.control(call)
    answer: Any = stage.executor.control(Wake())
    assert answer == (0,)
    assert stage.outputs()["a"].tobytes() == want
