"""GPUs of Intel. Untried."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

from stage_api.devices import Device
from stage_runtime.devices.accelerator import Accelerator


class Xpu(Accelerator):
    """A GPU of Intel."""

    kind: ClassVar[Device] = Device.XPU
    activity: ClassVar[str] = "XPU"

    @classmethod
    def is_built(cls) -> bool:
        """Whether this build of torch is one for it."""
        return torch.xpu._is_compiled()

    def process_group(self) -> Any:
        """XCCL."""
        return importlib.import_module("torch.distributed.distributed_c10d").ProcessGroupXCCL
