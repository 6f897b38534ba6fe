"""What the figures were measured on: one thread, which processor, which versions, and who else was busy.

Import it before torch: it sets the number of threads.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
}
os.environ |= ONE_THREAD  # for this process and those that it starts

import psutil  # noqa: E402 - after the threads are set

BUSY_CORES: Final = 0.3
"""From this much computing by others on, wall time says little."""


def assert_one_thread() -> None:
    """Raises: RuntimeError when torch would compute on more than one thread."""
    import torch

    if (threads := torch.get_num_threads()) != 1:
        raise RuntimeError(f"torch computes on {threads} threads; expected 1, set before torch is imported")


def describe() -> dict[str, object]:
    """The machine and the versions."""
    return {
        "cpu": _model_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "threads": 1,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "diffusers", "transformers", "greenlet")},
    }


def _model_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the machine was while something was measured."""

    average: tuple[float, float, float]
    """Runnable processes over 1, 5 and 15 minutes, this one included, when it began."""
    others_cores: float
    """Cores that other processes kept busy meanwhile."""

    @property
    def busy(self) -> bool:
        """True when wall time can't be trusted."""
        return self.others_cores > BUSY_CORES


class LoadWatch:
    """Watches the machine from its making on."""

    def __init__(self, ours: Sequence[psutil.Process] = ()) -> None:
        """`ours` are processes that belong to what is measured, though this one didn't start them."""
        self._ours = ours
        self._average = os.getloadavg()
        self._all, self._capacity = _busy_seconds()
        self._own = self.own_s()

    def so_far(self) -> Load:
        """The load since it was made."""
        everybody, capacity = _busy_seconds()
        passed = (capacity - self._capacity) / (os.cpu_count() or 1)
        others = (everybody - self._all) - (self.own_s() - self._own)
        return Load(self._average, max(0.0, others / passed) if passed > 0 else 0.0)

    def own_s(self) -> float:
        """CPU seconds so far of all that is measured."""
        return _own_seconds() + cpu_seconds(self._ours)


def _busy_seconds() -> tuple[float, float]:
    """CPU seconds of all processes since boot, and those there were to be had."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    spent = sum((times.user, times.system, getattr(times, "irq", 0.0), getattr(times, "softirq", 0.0)))
    return spent + getattr(times, "steal", 0.0), spent + getattr(times, "steal", 0.0) + idle + times.nice


def _own_seconds() -> float:
    """CPU seconds of this process, the children it has waited for, and those that live."""
    return sum(os.times()[:4]) + cpu_seconds(psutil.Process().children(recursive=True))


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds that these have used so far."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
