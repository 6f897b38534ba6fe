"""The executor in the engine's own process: it carries waves out, and fails closed when the device is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stage_runtime.assemble_rank import assemble_worker
from stage_runtime.core.control import Outstanding, StopEarly
from stage_runtime.core.errors import (
    DeviceLost,
    EngineDeadError,
    InternalError,
    InvalidRequest,
    ModelError,
    OutOfDeviceMemory,
)
from stage_runtime.core.outcome import Completed, Failed
from stage_runtime.core.wave import KvPrefetch, NewRequest, Wave
from stage_runtime.devices.kinds import choose_device
from stage_runtime.executor.uni import UniExecutor
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.worker import Worker
from support.hub_stage import ask
from support.toy_pipeline import BASE, PickyDenoiser, toy


def executor(synchronize: Callable[[], None] = lambda: None) -> UniExecutor:
    """An executor over a toy model; `synchronize` stands for waiting for the device."""

    def build() -> Worker:
        return assemble_worker(
            lambda _device: toy(denoiser=PickyDenoiser),
            lambda prompt, steps: {**BASE, "prompt": prompt, "num_inference_steps": steps},
            torch.device("cpu"),
            faults=FaultProbe(synchronize),
        )

    return UniExecutor(build)


def wave_of(*prompts: str, wave_id: int = 1, finished: tuple[str, ...] = ()) -> Wave:
    """A wave of new requests named by their prompts."""
    new = tuple(NewRequest(request=ask(BASE, prompt, prompt, steps=2, seed=1)) for prompt in prompts)
    return Wave(wave_id=wave_id, new=new, finished_ids=finished)


@pytest.mark.invariant("DIFF-RUNTIME-INV-002")
def test_only_what_the_wave_names_is_run() -> None:
    runs = executor()
    runs.submit(wave_of("a", "b"))
    assert {outcome.request_id for outcome in runs.poll(None)} == {"a", "b"}
    runs.submit(Wave(wave_id=2, cached_ids=("b",)))
    assert [outcome.request_id for outcome in runs.poll(None)] == ["b"]


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_a_wave_that_only_cleans_up_leaves_nothing_behind() -> None:
    """Case B26."""
    runs = executor()
    runs.submit(wave_of("a", "b"))
    runs.poll(None)
    runs.submit(Wave(wave_id=2, finished_ids=("a", "b")))
    assert runs.poll(None) == []
    assert runs.control(Outstanding()) == {"scripts": 0, "recordings": 0, "processors": 0}


def test_an_aborted_request_is_not_run_again_in_its_wave() -> None:
    runs = executor()
    runs.submit(wave_of("a", "b"))
    runs.abort(["a", "never heard of"])
    assert [outcome.request_id for outcome in runs.poll(None)] == ["b"]


def test_an_id_without_state_is_a_broken_law() -> None:
    runs = executor()
    runs.submit(Wave(wave_id=1, cached_ids=("ghost",)))
    with pytest.raises(InternalError, match="ghost"):
        runs.poll(None)


def test_key_value_fields_are_refused_while_nothing_uses_them() -> None:
    runs = executor()
    with pytest.raises(InternalError, match="key/value"):
        runs.submit(Wave(wave_id=1, kv_prefetch=KvPrefetch("a", "elsewhere")))
    envelope = NewRequest(request=ask(BASE, "a", "a", steps=2, seed=1), kv_metadata={"blocks": 1})
    with pytest.raises(InternalError, match="key/value"):
        runs.submit(Wave(wave_id=2, new=(envelope,)))


def test_a_failing_request_leaves_the_executor_healthy() -> None:
    runs = executor()
    runs.submit(wave_of("a", PickyDenoiser.POISON))
    outcomes = {outcome.request_id: outcome for outcome in runs.poll(None)}
    assert isinstance(outcomes[PickyDenoiser.POISON], Failed)
    runs.health()
    runs.submit(Wave(wave_id=2, cached_ids=("a",), finished_ids=(PickyDenoiser.POISON,)))
    assert isinstance(runs.poll(None)[0], Completed)


def test_a_device_that_stays_failed_kills_the_executor_for_good() -> None:
    def lost() -> None:
        raise RuntimeError("unspecified launch failure")

    runs = executor(lost)
    runs.submit(wave_of("a", PickyDenoiser.POISON))
    with pytest.raises(DeviceLost, match="poison"):
        runs.poll(None)
    for refused in (
        lambda: runs.submit(wave_of("b", wave_id=2)),
        lambda: runs.poll(None),
        lambda: runs.control(Outstanding()),
        runs.health,
    ):
        with pytest.raises(DeviceLost):
            refused()
    runs.close()


def test_out_of_memory_is_never_taken_for_a_lost_device() -> None:
    def lost() -> None:
        raise AssertionError("asked the device")

    FaultProbe(lost)(torch.OutOfMemoryError("too much"))


@pytest.mark.parametrize("places", [1, 2])
def test_memory_that_runs_out_while_a_model_is_tried_is_no_fault_of_the_model(places: int) -> None:
    """On the CPU, where torch raises a plain RuntimeError: real allocations of 2^60 bytes."""
    pipeline = toy()
    calls: list[int] = []

    def hungry(*_: object) -> None:
        calls.append(1)
        if len(calls) >= places:
            torch.empty(2**60, dtype=torch.uint8)

    pipeline.transformer.register_forward_pre_hook(hungry)
    with pytest.raises(OutOfDeviceMemory, match="does not fit"):
        assemble_worker(
            lambda _device: pipeline,
            lambda prompt, steps: {**BASE, "prompt": prompt, "num_inference_steps": steps},
            torch.device("cpu"),
        )


def test_stopping_a_request_that_does_not_run_is_the_callers_error() -> None:
    with pytest.raises(InvalidRequest, match="not running"):
        executor().control(StopEarly("nobody"))


def test_close_is_idempotent_and_nothing_runs_after_it() -> None:
    runs = executor()
    runs.submit(wave_of("a"))
    runs.close()
    runs.close()
    with pytest.raises(EngineDeadError, match="closed"):
        runs.poll(None)


def test_a_model_that_can_not_be_run_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="can't be run"):
        UniExecutor(
            lambda: assemble_worker(
                lambda _device: toy(),
                lambda prompt, steps: {"prompt": prompt, "size": 5},
                torch.device("cpu"),
            )
        )


def test_an_accelerator_that_is_not_there_is_refused_by_name() -> None:
    assert choose_device("auto").type == "cpu" or torch.accelerator.is_available()
    if not torch.accelerator.is_available():
        with pytest.raises(ModelError, match="cuda"):
            choose_device("cuda")
