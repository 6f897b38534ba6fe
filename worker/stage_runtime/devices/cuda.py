"""GPUs of NVIDIA, and those of AMD, which torch calls by the same name."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

from stage_api.devices import Device
from stage_runtime.devices.accelerator import Accelerator


class Cuda(Accelerator):
    """A GPU of NVIDIA."""

    kind: ClassVar[Device] = Device.CUDA
    activity: ClassVar[str] = "CUDA"

    @classmethod
    def is_built(cls) -> bool:
        """Whether this build of torch is one for it."""
        return torch.backends.cuda.is_built() and torch.version.hip is None

    def process_group(self) -> Any:
        """NCCL; on AMD's, RCCL under its name."""
        return importlib.import_module("torch.distributed").ProcessGroupNCCL


class Rocm(Cuda):
    """A GPU of AMD."""

    kind: ClassVar[Device] = Device.ROCM

    @classmethod
    def is_built(cls) -> bool:
        """Whether this build of torch is one for it."""
        return torch.version.hip is not None
