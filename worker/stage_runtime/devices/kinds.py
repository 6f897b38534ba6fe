"""Every kind of device by its name, and what torch sees of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

import torch

from stage_api.devices import ACCELERATORS, Device
from stage_runtime.devices import container_accelerators
from stage_runtime.devices.choice import Usable, choose
from stage_runtime.devices.compute import ComputeDevice
from stage_runtime.devices.cuda import Cuda, Rocm
from stage_runtime.devices.mps import Mps
from stage_runtime.devices.npu import Npu
from stage_runtime.devices.xpu import Xpu

log = logging.getLogger(__name__)

KINDS: Final[Mapping[Device, type[ComputeDevice]]] = {
    made.kind: made for made in (ComputeDevice, Cuda, Rocm, Xpu, Npu, Mps)
}


def usable() -> Usable:
    """What torch can use in this process."""
    built = frozenset(kind for kind, made in KINDS.items() if kind in ACCELERATORS and made.is_built())
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return Usable(built=built, version=torch.__version__)
    kind = _kind_of(found.type)
    return Usable(
        kind=kind,
        count=torch.accelerator.device_count(),
        built=built,
        version=torch.__version__,
        unknown="" if kind else found.type,
    )


def choose_device(wanted: str, index: int = 0) -> torch.device:
    """The device of the `index`-th rank of this machine, by the name in the spec.

    Raises: ModelError, SpecError, DeviceLost; see `choice.choose`.
    """
    chosen = choose(Device(wanted), index, usable(), container_accelerators.find(os.environ))
    if chosen.passed_over:
        log.warning(
            "an accelerator that torch can't use", extra={"found": chosen.passed_over, "taken": "cpu"}
        )
    facts = ACCELERATORS.get(chosen.kind)
    return torch.device("cpu") if facts is None else torch.device(facts.torch_type, chosen.index)


def compute_device(device: torch.device) -> ComputeDevice:
    """What is known of a device of torch's."""
    kind = Device.CPU if device.type == Device.CPU.value else _kind_of(device.type)
    if kind is None:
        raise ValueError(f"a device that nothing is known of: {device}")
    return KINDS[kind](device)


def _kind_of(torch_type: str) -> Device | None:
    """The kind of a device that torch calls so; of two makers' with one name, the one torch is built for."""
    named = [kind for kind, facts in ACCELERATORS.items() if facts.torch_type == torch_type]
    return next((kind for kind in named if KINDS[kind].is_built()), named[0] if named else None)
