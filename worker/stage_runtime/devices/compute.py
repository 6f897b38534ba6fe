"""One device that a rank computes on: what differs between kinds, in one interface.

This class is the CPU; each kind of accelerator has a module with a class of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import torch

from stage_api.devices import Device


class Memory(NamedTuple):
    """A device's memory in bytes."""

    free: int
    total: int


class ComputeDevice:
    """The CPU, whose memory is the host's, and whose work is done when a call returns."""

    kind: ClassVar[Device] = Device.CPU
    shares_host_memory: ClassVar[bool] = True
    """Whether what is taken off the device would lie in the very same memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @classmethod
    def is_built(cls) -> bool:
        """Whether this build of torch could use such a device, if there were one."""
        return True

    def synchronize(self) -> None:
        """Wait for all that was started. Raises whatever a poisoned context raises."""

    def free_cached(self) -> None:
        """Give memory back that torch holds for later."""

    def allocated_bytes(self) -> int | None:
        """Memory of the tensors that live; None where nobody counts it."""
        return None

    def memory(self) -> Memory | None:
        """What the whole device has; None where the container's limit is what counts."""
        return None

    def record(self) -> torch.Event | None:
        """What tells when all that was started so far is done; None where that is so already."""
        return None

    def side_stream(self) -> torch.Stream | None:
        """An order of work beside the model's own; None where there is but one."""
        return None

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory of a tensor's shape and dtype, locked if that makes the device read it faster."""
        return torch.empty(like.shape, dtype=like.dtype)

    def profiled(self) -> tuple[torch.profiler.ProfilerActivity, ...]:
        """What a profile records of it."""
        return (torch.profiler.ProfilerActivity.CPU,)

    def collectives(self, store: Any, index: int, size: int, timeout: timedelta) -> Any:
        """A raw process group for tensors that lie on it, met at `store`; None where the hosts' own serves.

        `timeout` bounds each collective. NB: takes the device for the calling thread.
        """
        return None
