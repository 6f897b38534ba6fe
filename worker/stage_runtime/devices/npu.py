"""NPUs of Huawei, by the package `torch_npu`, which torch loads by itself where it is installed. Untried."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

from stage_api.devices import Device
from stage_runtime.devices.accelerator import Accelerator


class Npu(Accelerator):
    """An NPU of Huawei."""

    kind: ClassVar[Device] = Device.NPU
    activity: ClassVar[str] = "PrivateUse1"

    @classmethod
    def is_built(cls) -> bool:
        """Whether `torch_npu` is there."""
        return hasattr(torch, "npu")

    def process_group(self) -> Any:
        """HCCL."""
        return importlib.import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL
