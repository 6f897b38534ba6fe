"""Weights that sleep come back as they were: same objects, same bits, same pictures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from stage_runtime.core.control import Health, Pause, Resume, Sleep, Wake
from stage_runtime.core.errors import InvalidRequest, RequestFailed
from stage_runtime.scripts.private_pipeline import components
from stage_runtime.worker.residency import Residency
from support import tiny_models
from support.control_stage import (
    CPU,
    SHAPES,
    a_worker,
    arguments_of,
    drawn,
    one,
    read,
    stage_of,
    two_dogs,
)
from support.hub_stage import HubStage

levels = pytest.mark.parametrize("level", [1, 2])


class Asleep(NamedTuple):
    """A stage of one model, and what its pipeline is made of."""

    stage: HubStage
    base: dict[str, Any]
    pipelines: list[Any]
    """Every pipeline that was read; the first one is served."""


@pytest.fixture(scope="module", params=[*tiny_models.NAMES, "shapes"])
def model(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[Asleep]:
    """Each family in turn, read by the real loader."""
    name = request.param
    yield from _stage(SHAPES if name == "shapes" else tiny_model(name), arguments_of(name))


@pytest.fixture
def shapes(tmp_path: Path) -> Iterator[Asleep]:
    """The shapes model, in a folder that a test may break."""
    yield from _stage(Path(shutil.copytree(SHAPES, tmp_path / "shapes")), arguments_of("shapes"))


def _stage(folder: Path, base: dict[str, Any]) -> Iterator[Asleep]:
    pipelines: list[Any] = []

    def load(device: torch.device) -> Any:
        pipelines.append(read(folder)(device))
        return pipelines[-1]

    stage = stage_of(a_worker(load, base))
    yield Asleep(stage, base, pipelines)
    stage.executor.close()


def tensors(pipeline: Any) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, tied ones under each of their names."""
    return {
        f"{component}.{name}": tensor
        for component, module in components(pipeline).items()
        for named in (
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
        for name, tensor in named
    }


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What must stay of a tensor: which object it is, its type, its layout and its numbers."""
    numbers = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return id(tensor), type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), numbers


@levels
def test_the_same_request_gives_the_same_bytes_after_a_sleep(model: Asleep, level: Any) -> None:
    before = drawn(model.stage, model.base, f"before {level}")
    model.stage.executor.control(Sleep(level))
    model.stage.executor.control(Wake())
    assert drawn(model.stage, model.base, f"after {level}") == before


@levels
def test_a_request_in_the_midst_of_denoising_stays_where_it_is_and_goes_on(model: Asleep, level: Any) -> None:
    want = drawn(model.stage, model.base, f"whole {level}")
    model.stage.arrive(two_dogs(model.base, f"halted {level}"))
    model.stage.tick()
    model.stage.executor.control(Sleep(level))
    held = model.stage.held()
    model.stage.executor.wake()
    assert model.stage.executor.poll(None) == []
    assert model.stage.held() == held
    model.stage.executor.control(Wake())
    assert model.stage.outputs()[f"halted {level}"].tobytes() == want


@pytest.mark.invariant("OFFLOAD-INV-003")
@levels
def test_parameters_and_buffers_are_the_same_objects_with_the_same_bits(model: Asleep, level: Any) -> None:
    pipeline = model.pipelines[0]
    before = {name: facts(tensor) for name, tensor in tensors(pipeline).items()}
    model.stage.executor.control(Sleep(level))
    model.stage.executor.control(Wake())
    assert {name: facts(tensor) for name, tensor in tensors(pipeline).items()} == before


def test_level_two_really_frees_the_weights(model: Asleep) -> None:
    weights = [t for t in tensors(model.pipelines[0]).values() if isinstance(t, torch.nn.Parameter)]
    whole = sum({t.data_ptr(): t.untyped_storage().nbytes() for t in weights}.values())
    said = one(model.stage, Sleep(2))
    assert sum(t.untyped_storage().nbytes() for t in weights) == 0
    assert said == whole
    assert one(model.stage, Wake()) == whole
    assert sum({t.data_ptr(): t.untyped_storage().nbytes() for t in weights}.values()) == whole


@pytest.mark.invariant("OFFLOAD-INV-001")
def test_health_counts_the_weights_that_are_there(shapes: Asleep) -> None:
    whole = one(shapes.stage, Health()).allocated_bytes
    shapes.stage.executor.control(Sleep(2))
    asleep = one(shapes.stage, Health())
    assert asleep.asleep
    assert asleep.paused
    assert asleep.allocated_bytes < whole / 100
    shapes.stage.executor.control(Wake())
    awake = one(shapes.stage, Health())
    assert (awake.asleep, awake.paused, awake.allocated_bytes) == (False, False, whole)


def test_on_a_cpu_the_first_level_frees_nothing_and_says_so(shapes: Asleep) -> None:
    assert one(shapes.stage, Sleep(1)) == 0
    assert one(shapes.stage, Health()).asleep


@pytest.mark.invariant("OFFLOAD-INV-001")
def test_a_sleep_goes_deeper_but_not_back(shapes: Asleep) -> None:
    shapes.stage.executor.control(Sleep(1))
    assert one(shapes.stage, Sleep(2)) > 0
    assert one(shapes.stage, Sleep(2)) == 0
    assert one(shapes.stage, Sleep(1)) == 0
    assert one(shapes.stage, Wake()) > 0


def test_waking_what_is_awake_does_nothing_but_resume(shapes: Asleep) -> None:
    shapes.stage.executor.control(Pause())
    assert one(shapes.stage, Wake()) == 0
    assert not shapes.stage.worker.paused


@pytest.mark.invariant("OFFLOAD-INV-002")
@levels
def test_a_stage_that_sleeps_can_not_be_resumed(shapes: Asleep, level: Any) -> None:
    shapes.stage.executor.control(Sleep(level))
    with pytest.raises(InvalidRequest, match="wake"):
        shapes.stage.executor.control(Resume())
    assert shapes.stage.worker.paused


@pytest.mark.invariant("OFFLOAD-INV-003")
def test_tied_weights_are_still_tied() -> None:
    """Also two views of one storage, which no list of names shows."""
    module = torch.nn.Module()
    whole = torch.randn(6, 4)
    module.first, module.second = torch.nn.Parameter(whole[:2]), torch.nn.Parameter(whole[2:])
    module.tied = module.first
    fresh = _copy(module)
    residency = Residency({"part": module}, CPU, lambda: Parts(part=fresh))
    residency.sleep(2)
    residency.wake()
    assert module.tied is module.first
    assert module.first.untyped_storage().data_ptr() == module.second.untyped_storage().data_ptr()
    assert torch.equal(torch.cat([module.first, module.second]), whole)


@pytest.mark.invariant("OFFLOAD-INV-003")
def test_a_buffer_that_no_checkpoint_holds_keeps_what_it_was_changed_to() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("positions", torch.arange(3.0), persistent=False)
    module.positions += 1
    fresh = _copy(module)
    residency = Residency({"part": module}, CPU, lambda: Parts(part=fresh), shares_host_memory=False)
    residency.sleep(2)
    assert module.positions.numel() == 0
    residency.wake()
    assert module.positions.tolist() == [1.0, 2.0, 3.0]


def test_a_checkpoint_that_was_exchanged_is_not_taken_for_the_one_that_slept(shapes: Asleep) -> None:
    file = next(iter((shapes_folder(shapes) / "transformer").glob("*.safetensors")))
    kept = file.read_bytes()
    shapes.stage.executor.control(Sleep(2))
    weights = load_file(file)
    name = next(name for name, tensor in weights.items() if tensor.dim() == 2)
    weights[name] = weights[name].flip(0)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(RequestFailed, match="another transformer"):
        shapes.stage.executor.control(Wake())
    assert one(shapes.stage, Health()).asleep
    file.write_bytes(kept)
    shapes.stage.executor.control(Wake())
    assert not one(shapes.stage, Health()).paused


@pytest.mark.invariant("OFFLOAD-INV-002")
def test_a_checkpoint_that_is_gone_leaves_the_stage_asleep_and_able_to_wake(shapes: Asleep) -> None:
    before = drawn(shapes.stage, shapes.base, "before")
    folder = shapes_folder(shapes)
    shapes.stage.executor.control(Sleep(2))
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(RequestFailed, match="can't be had back"):
        shapes.stage.executor.control(Wake())
    folder.with_name("elsewhere").rename(folder)
    shapes.stage.executor.control(Wake())
    assert drawn(shapes.stage, shapes.base, "after") == before


def test_the_copies_in_host_memory_give_back_what_a_device_held() -> None:
    """What level 1 does on an accelerator, with memory of the host in its place."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(torch.bfloat16)
    before = {name: facts(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    residency = Residency({"part": module}, CPU, lambda: None, shares_host_memory=False)
    freed = residency.sleep(1)
    assert freed == sum(len(fact[-1]) for fact in before.values())
    assert residency.bytes_here == 0
    assert residency.wake() == freed
    assert {name: facts(tensor) for name, tensor in module.state_dict(keep_vars=True).items()} == before


@pytest.mark.invariant("OFFLOAD-INV-004")
def test_going_deeper_from_copies_in_host_memory_drops_them() -> None:
    module = torch.nn.Linear(3, 3)
    before = {name: facts(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    fresh = _copy(module)
    residency = Residency({"part": module}, CPU, lambda: Parts(part=fresh), shares_host_memory=False)
    residency.sleep(1)
    assert residency.sleep(2) == 0
    residency.wake()
    assert {name: facts(tensor) for name, tensor in module.state_dict(keep_vars=True).items()} == before
    assert fresh.weight.numel() == 0, "level 2 read the checkpoint, and let go of it"


@pytest.mark.invariant("OFFLOAD-INV-004")
def test_a_closed_worker_holds_no_weights(shapes: Asleep) -> None:
    shapes.stage.executor.control(Sleep(2))
    shapes.stage.worker.close()
    assert shapes.stage.worker.control(Health()).allocated_bytes == 0  # type: ignore[attr-defined]


def shapes_folder(model: Asleep) -> Path:
    """Where the checkpoint is."""
    return Path(model.pipelines[0].config._name_or_path)


class Parts:
    """Stands for a pipeline."""

    def __init__(self, **parts: torch.nn.Module) -> None:
        self.__dict__.update(parts)


def _copy(module: Any) -> Any:
    """The same module as a loader would read it anew."""
    copied = type(module)(3, 3) if isinstance(module, torch.nn.Linear) else torch.nn.Module()
    for name, parameter in module.named_parameters():
        setattr(copied, name, torch.nn.Parameter(parameter.detach().clone()))
    return copied
