"""What each kind of device does by its module; only the CPU can be run here."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from stage_api.devices import ACCELERATORS, Device
from stage_runtime.devices.kinds import KINDS, choose_device, compute_device, usable

HERE = compute_device(torch.device("cpu"))


def test_every_kind_has_a_module_and_auto_is_none() -> None:
    assert set(KINDS) == set(Device) - {Device.AUTO}
    assert [kind for kind, made in KINDS.items() if made.kind is not kind] == []


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_a_device_of_torchs_is_known_by_its_kind(kind: Device) -> None:
    name = ACCELERATORS[kind].torch_type
    if name == "npu" and not hasattr(torch, "npu"):
        with pytest.raises(RuntimeError, match="npu"):
            torch.device(name)
        return
    found = compute_device(torch.device(name, 1)).kind
    assert ACCELERATORS[found].torch_type == name


def test_the_profiler_knows_what_each_kind_is_called() -> None:
    named = {made.activity for made in KINDS.values() if getattr(made, "activity", "")}
    assert named <= set(torch.profiler.ProfilerActivity.__members__)


def test_a_build_for_the_cpu_can_use_none() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    found = usable()
    assert (found.kind, found.count, found.unknown) == (None, 0, "")
    assert found.version == torch.__version__


def test_the_cpu_has_nothing_to_wait_for_and_no_group_of_its_own() -> None:
    HERE.synchronize()
    HERE.free_cached()
    assert HERE.record() is HERE.side_stream() is HERE.allocated_bytes() is HERE.memory() is None
    assert HERE.collectives(None, 0, 2, timedelta(seconds=1)) is None
    assert HERE.shares_host_memory


def test_a_host_buffer_has_the_shape_and_the_numbers_of_what_it_is_for() -> None:
    like = torch.zeros((3, 2), dtype=torch.bfloat16)
    made = HERE.host_buffer(like)
    assert (made.shape, made.dtype, made.device.type) == ((3, 2), torch.bfloat16, "cpu")


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is known of: meta"):
        compute_device(torch.device("meta"))


def test_the_cpu_can_be_had_by_its_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
