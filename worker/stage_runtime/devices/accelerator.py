"""What torch does alike with every kind of accelerator."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import torch

from stage_runtime.devices.compute import ComputeDevice, Memory


class Accelerator(ComputeDevice):
    """A device with memory, streams and errors of its own."""

    shares_host_memory: ClassVar[bool] = False
    activity: ClassVar[str] = ""
    """What torch's profiler calls it; empty where it can't tell."""

    def synchronize(self) -> None:
        """Wait for all that was started. Raises whatever a poisoned context raises."""
        torch.accelerator.synchronize(self.device)

    def free_cached(self) -> None:
        """Give memory back that torch holds for later."""
        torch.accelerator.empty_cache()

    def allocated_bytes(self) -> int | None:
        """Memory of the tensors that live."""
        return torch.accelerator.memory_allocated(self.device)

    def memory(self) -> Memory | None:
        """What the whole device has."""
        return Memory(*torch.accelerator.get_memory_info(self.device))

    def record(self) -> torch.Event | None:
        """What tells when all that was started so far is done."""
        event = torch.Event(self.device)
        event.record()
        return event

    def side_stream(self) -> torch.Stream | None:
        """An order of work beside the model's own."""
        return torch.Stream(self.device)

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory of a tensor's shape and dtype, locked unless the host allows no more of that."""
        try:
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        except RuntimeError:
            return super().host_buffer(like)

    def profiled(self) -> tuple[torch.profiler.ProfilerActivity, ...]:
        """The host's part and the device's own."""
        there = torch.profiler.ProfilerActivity.__members__.get(self.activity)
        return super().profiled() if there is None else (*super().profiled(), there)

    def collectives(self, store: Any, index: int, size: int, timeout: timedelta) -> Any:
        """A raw process group for tensors that lie on it."""
        torch.accelerator.set_device_index(self.device.index or 0)
        kind = self.process_group()
        options = kind.Options()
        options._timeout = timeout
        return kind(store, index, size, options)

    def process_group(self) -> Any:
        """The class of its process groups."""
        raise NotImplementedError
