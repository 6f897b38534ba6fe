"""The kinds of devices that ranks compute on, and what is known of each without torch.

What torch does with them is in the runtime's package `devices`; nothing else names a kind of accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Device(StrEnum):
    """Kind of device that the ranks compute on; `auto` takes an accelerator if there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    NPU = "npu"
    MPS = "mps"


DEVICE_WORDS: Final = (
    "Device to compute on; `auto` takes an accelerator if there is one. The stage refuses to start without the device "
    "it asks for, and with `auto` in a pod whose accelerator can't be used. `cuda` takes whatever torch calls so, "
    "`rocm` only AMD's. Only cpu was ever run: the others are untried."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What is known of one kind of accelerator without torch."""

    torch_type: str
    """What torch calls its devices."""
    resource: str = ""
    """What a cluster calls it, by default, where the stage doesn't say; empty where no cluster has any."""
    visible: str = ""
    """Environment variable that narrows what a process sees; empty where there is none."""
    handed: str = ""
    """Environment variable by which a container's runtime says which ones it handed in."""
    files: tuple[str, ...] = ()
    """Patterns of the files in /dev by which a process reaches one."""


# What only one kind has stands first: a graphics card of any maker may have a file in /dev/dri.
ACCELERATORS: Final[Mapping[Device, Accelerator]] = {
    Device.CUDA: Accelerator(
        torch_type="cuda",
        resource="nvidia.com/gpu",
        visible="CUDA_VISIBLE_DEVICES",
        handed="NVIDIA_VISIBLE_DEVICES",
        files=("nvidia[0-9]*",),
    ),
    Device.ROCM: Accelerator(
        torch_type="cuda", resource="amd.com/gpu", visible="HIP_VISIBLE_DEVICES", files=("kfd",)
    ),
    Device.NPU: Accelerator(
        torch_type="npu",
        resource="huawei.com/Ascend910",
        visible="ASCEND_RT_VISIBLE_DEVICES",
        handed="ASCEND_VISIBLE_DEVICES",
        files=("davinci[0-9]*",),
    ),
    Device.XPU: Accelerator(
        torch_type="xpu", resource="gpu.intel.com/xe", visible="ZE_AFFINITY_MASK", files=("dri/renderD*",)
    ),
    Device.MPS: Accelerator(torch_type="mps"),
}

DEFAULT_RESOURCE: Final = ACCELERATORS[Device.CUDA].resource
"""Of a stage that says neither resource nor device."""

RESOURCES: Final[tuple[str, ...]] = tuple(facts.resource for facts in ACCELERATORS.values() if facts.resource)


def default_resource(device: Device) -> str:
    """The resource of which each rank gets one, where the stage doesn't say; empty for none."""
    if device is Device.AUTO:
        return DEFAULT_RESOURCE
    facts = ACCELERATORS.get(device)
    return "" if facts is None else facts.resource


def kind_of_resource(resource: str) -> Device | None:
    """The kind that a resource is of, by its maker's domain; None where nobody knows it."""
    domain = resource.partition("/")[0]
    for device, facts in ACCELERATORS.items():
        if facts.resource.partition("/")[0] == domain and domain:
            return device
    return None
