"""Telling that memory ran out, on whatever device: accelerators raise a type of torch's own, the CPU only words."""

from __future__ import annotations

from typing import Final

from stage_runtime.core.error_codec import words_of

CPU_ALLOCATOR: Final = "DefaultCPUAllocator"
"""What torch's allocator for the CPU calls itself in the RuntimeError that it raises."""


NO_MEMORY: Final = "the device has too little free memory for this request"


def out_of_memory(error: BaseException) -> bool:
    """True when `error` says that a device, or the host, has no memory left for what was asked.

    torch's own type is known by its name, since this layer doesn't import torch.
    """
    if isinstance(error, MemoryError) or CPU_ALLOCATOR in words_of(error):
        return True
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
