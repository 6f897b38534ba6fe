"""A worker extension adds methods, with a narrow view, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stage_api.errors import SpecError
from stage_api.spec import ExtensionsSpec
from stage_runtime.core.control import Invoke, Sleep
from stage_runtime.core.errors import EngineDeadError, InvalidRequest, RequestFailed
from stage_runtime.worker.extension import WorkerView
from stage_runtime.worker.parts import parts_of
from stage_runtime.worker.tensor_wire import pack, unpack
from support.control_stage import a_worker, drawn, one, stage_of
from support.hub_stage import HubStage
from support.toy_pipeline import BASE


class Toolbox:
    """Methods to call."""

    def __init__(self, view: WorkerView) -> None:
        self._view = view

    def where(self) -> dict[str, Any]:
        """What the view shows."""
        return {
            "rank": self._view.rank,
            "device": str(self._view.device),
            "calls": self._view.counts.calls,
        }

    def scaled(self, tensor: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        """`tensor` times `by`."""
        return tensor * by

    def darken(self) -> None:
        """Change weights in place."""
        for parameter in self._view.pipeline.transformer.parameters():
            parameter.zero_()

    def refuse(self) -> None:
        """Refuse."""
        raise InvalidRequest("not today", "day")

    def break_down(self) -> None:
        """Raise something that only a dead group may raise."""
        raise EngineDeadError("says the extension")

    def leak(self) -> object:
        """Return what can't travel."""
        return {"deep": [self]}


class Shadowing:
    """Would take a worker's place."""

    def __init__(self, view: WorkerView) -> None: ...

    def tick(self) -> None:
        """As the worker has it."""

    def submit(self) -> None:
        """As the worker has it."""


class Waiting:
    """Would answer with a coroutine."""

    def __init__(self, view: WorkerView) -> None: ...

    async def later(self) -> None:
        """No answer."""


class Empty:
    """Has nothing to call."""


class Needy:
    """Can't be made with a view alone."""

    def __init__(self, view: WorkerView, more: int) -> None: ...

    def work(self) -> None:
        """Something."""


class Lookalike:
    """Lacks most of a runner."""

    def tick(self) -> None:
        """As a runner has it."""


@pytest.fixture
def stage() -> HubStage:
    """A toy stage with a toolbox."""
    return stage_of(a_worker(rank=2, extension=Toolbox))


def test_a_method_sees_its_rank_and_device_and_how_often_the_model_was_called(stage: HubStage) -> None:
    drawn(stage, BASE, "a")
    assert one(stage, Invoke("where")) == {"rank": 2, "device": "cpu", "calls": {"transformer.forward": 3}}


def test_tensors_go_in_and_come_out_in_their_own_dtype(stage: HubStage) -> None:
    given = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    answer = unpack(one(stage, Invoke("scaled", pack({"tensor": given, "by": 3.0}))))
    assert answer.dtype is torch.bfloat16
    assert torch.equal(answer, given * 3.0)


def test_weights_may_be_changed_between_two_steps(stage: HubStage) -> None:
    before = drawn(stage, BASE, "before")
    assert one(stage, Invoke("darken")) is None
    assert drawn(stage, BASE, "after") != before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Invoke("nothing"), "expected one of"),
        (Invoke("_view"), "expected one of"),
        (Invoke("__init__"), "expected one of"),
        (Invoke("scaled"), "missing"),
        (Invoke("where", {"more": 1}), "unexpected"),
        (Invoke("refuse"), "not today"),
    ],
)
def test_a_call_that_does_not_fit_is_the_callers_error(stage: HubStage, call: Invoke, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        stage.executor.control(call)


def test_a_method_that_fails_fails_its_call_alone(stage: HubStage) -> None:
    with pytest.raises(RequestFailed, match="says the extension"):
        stage.executor.control(Invoke("break_down"))
    stage.executor.health()
    drawn(stage, BASE, "a")


def test_an_answer_that_can_not_travel_is_named(stage: HubStage) -> None:
    with pytest.raises(RequestFailed, match=r"leak.deep\[0\].*Toolbox"):
        stage.executor.control(Invoke("leak"))


def test_no_method_meets_weights_that_sleep(stage: HubStage) -> None:
    stage.executor.control(Sleep(1))
    with pytest.raises(InvalidRequest, match="sleep"):
        stage.executor.control(Invoke("where"))


def test_without_an_extension_there_is_nothing_to_call() -> None:
    with pytest.raises(InvalidRequest, match="no worker extension"):
        stage_of(a_worker()).executor.control(Invoke("where"))


@pytest.mark.invariant("DIFF-RUNTIME-INV-004")
def test_an_extension_can_not_take_the_place_of_what_a_worker_does() -> None:
    with pytest.raises(SpecError, match="submit, tick"):
        a_worker(extension=Shadowing)


@pytest.mark.parametrize(
    ("kind", "words"), [(Waiting, "later"), (Empty, "no public method"), (Needy, "more")]
)
def test_a_class_that_is_no_extension_stops_the_start(kind: type, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        a_worker(extension=kind)


def test_the_faults_of_a_ranks_classes_are_told_together() -> None:
    here = "device_worker_classes_under_test"
    wrong = ExtensionsSpec(runner=f"{here}:Runner", worker="pathlib:Nothing")
    with pytest.raises(SpecError) as refused:
        parts_of(wrong)
    assert [fault.path for fault in refused.value.faults] == [
        "spec.engine.extensions.runner",
        "spec.engine.extensions.worker",
    ]


def test_a_runner_has_to_have_all_that_a_worker_uses() -> None:
    with pytest.raises(SpecError, match="lacks add, close"):
        parts_of(ExtensionsSpec(runner="collections:OrderedDict"))


def test_the_runtimes_own_runners_have_all_that_a_worker_uses() -> None:
    parts = parts_of(ExtensionsSpec(runner="stage_runtime.runner.runner:Runner"))
    assert parts.runner is not None
    assert parts_of(ExtensionsSpec()) == type(parts)()
