"""GPUs of Apple, which share the host's memory; a machine has one. Untried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import torch

from stage_api.devices import Device
from stage_runtime.devices.accelerator import Accelerator
from stage_runtime.devices.compute import ComputeDevice, Memory


class Mps(Accelerator):
    """The GPU of a Mac."""

    kind: ClassVar[Device] = Device.MPS
    shares_host_memory: ClassVar[bool] = True

    @classmethod
    def is_built(cls) -> bool:
        """Whether this build of torch is one for it."""
        return torch.backends.mps.is_built()

    def synchronize(self) -> None:
        """Wait for all that was started."""
        torch.mps.synchronize()

    def free_cached(self) -> None:
        """Give memory back that torch holds for later."""
        torch.mps.empty_cache()

    def allocated_bytes(self) -> int | None:
        """Memory of the tensors that live."""
        return torch.mps.current_allocated_memory()

    def memory(self) -> Memory | None:
        """What the system recommends, less what its driver has given out."""
        total = torch.mps.recommended_max_memory()
        return Memory(max(0, total - torch.mps.driver_allocated_memory()), total)

    def record(self) -> torch.Event | None:
        """None: its work is waited for where a result is read."""
        return None

    def side_stream(self) -> torch.Stream | None:
        """None: there is but one."""
        return None

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory, which is its own."""
        return ComputeDevice.host_buffer(self, like)

    def collectives(self, store: Any, index: int, size: int, timeout: timedelta) -> Any:
        """None: no two ranks of one machine have a device each, and the hosts' own group serves."""
        return None
