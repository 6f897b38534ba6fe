"""What a rank tells of its start: where it computes, for the log, and what it is doing, for who waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from stage_api.startup_progress import MAX_CHARS, Activity, StartProgress
from stage_runtime.core.starting import Tell
from stage_runtime.devices.compute import ComputeDevice, Memory
from stage_runtime.worker.threads import CGROUP

MEMINFO: Final = Path("/proc/meminfo")

log = logging.getLogger(__name__)


def log_place(compute: ComputeDevice) -> None:
    """Log the device taken, the threads chosen and the memory found."""
    memory = compute.memory() or host_memory()
    place = {"device": str(compute.device), "threads": torch.get_num_threads()}
    log.info("rank computes", extra={**place, "memory_bytes": memory.total, "free_bytes": memory.free})


def host_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> Memory:
    """The host's memory, or what the container may use of it (cgroup v2, then v1)."""
    lines = (line.split(":") for line in meminfo.read_text().splitlines())
    kilobytes = {name: int(value.split()[0]) for name, value in lines}
    memory = Memory(kilobytes["MemAvailable"] << 10, kilobytes["MemTotal"] << 10)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, now = int((cgroup / limit).read_text()), int((cgroup / used).read_text())
        except (OSError, ValueError):
            continue  # there is no such group, or no limit
        if most < memory.total:
            memory = Memory(min(memory.free, max(0, most - now)), most)
    return memory


def told(load: Callable[..., Any], tell: Tell) -> Callable[[torch.device], Any]:
    """`load` that tells of its first call, which is the start's; a later one is a wake's.

    `load` takes `device` and, for the first call, `on_part`.
    """
    calls = iter((True,))

    def on_part(name: str, done: int, total: int) -> None:
        tell(StartProgress(activity=Activity.LOADING, what=name[:MAX_CHARS], done=done, total=total))

    def loading(device: torch.device) -> Any:
        if not next(calls, False):
            return load(device=device)
        tell(StartProgress(activity=Activity.LOADING))
        model = load(device=device, on_part=on_part)
        tell(StartProgress(activity=Activity.PROBING))
        return model

    return loading
