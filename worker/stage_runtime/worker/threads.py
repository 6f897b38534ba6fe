"""How many threads a CPU may use: those it is given, not those the machine has.

torch counts the machine's cores. In a container with a quota of two on a node of sixty-four that is sixty-four
threads for two cores, which wait for each other at every operation and are many times slower than one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
ENVIRONMENT: Final = "OMP_NUM_THREADS"


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Cores that the container's control group may use at once; None when there is no limit (cgroup v2, then v1)."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def allowed_cores(cgroup: Path = CGROUP) -> int:
    """Whole cores that this process and those it starts may use together."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_threads(cgroup: Path = CGROUP) -> int | None:
    """Threads for a model on the CPU; None leaves the choice to who set OMP_NUM_THREADS."""
    return None if os.environ.get(ENVIRONMENT) else allowed_cores(cgroup)
