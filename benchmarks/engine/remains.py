"""What is left of an engine after its end, in this process and around it, and whether it grows."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from stage_runtime.ipc.socket_folder import prefix_of

WARM_LIVES: Final = 2
"""Until everything has been imported and every pool has its size."""
MOST_MB: Final = 16.0
"""Growth that is noise, whatever the slope."""
MOST_MB_PER_LIFE: Final = 0.5


class Remains(NamedTuple):
    """Counted after a life, when nothing of it should be there any more."""

    at_s: float
    rss_mb: float
    fds: int
    threads: int
    children: int
    shm: int
    """Segments in /dev/shm that this process has."""
    sockets: int
    """Socket folders of this process."""

    def left(self) -> list[str]:
        """What should be gone, in words."""
        counts = {"child processes": self.children, "shared memory": self.shm, "socket folders": self.sockets}
        return [f"{n} {what} left after {self.at_s:.0f} s" for what, n in counts.items() if n]

    @staticmethod
    def growth(seen: Sequence[Remains]) -> list[str]:
        """What has grown since it was warm, in words."""
        if len(seen) <= WARM_LIVES:
            return []
        warm, last = seen[WARM_LIVES - 1], seen[-1]
        grown = [
            f"{what} grew from {before} to {after}"
            for what, before, after in (
                ("file descriptors", warm.fds, last.fds),
                ("threads", warm.threads, last.threads),
            )
            if after > before
        ]
        mb = last.rss_mb - warm.rss_mb
        if mb > MOST_MB and slope([one.rss_mb for one in seen[WARM_LIVES - 1 :]]) > MOST_MB_PER_LIFE:
            grown.append(f"memory grew by {mb:.1f} MB in {len(seen) - WARM_LIVES} lives")
        return grown


def remains(at_s: float) -> Remains:
    """Count now."""
    process = psutil.Process()
    mine = "-".join(prefix_of(process.pid).split("-")[1:3])
    return Remains(
        at_s=at_s,
        rss_mb=process.memory_info().rss / 2**20,
        fds=process.num_fds(),
        threads=threading.active_count(),
        children=len(process.children(recursive=True)),
        shm=Path("/proc/self/maps").read_text().count("/dev/shm/#"),  # they have no names
        sockets=len(list(Path(tempfile.gettempdir()).glob(f"omnistage-{mine}-*"))),
    )


def slope(values: Sequence[float]) -> float:
    """By how much a value grows from one life to the next, by least squares."""
    n = len(values)
    if n < 2:
        return 0.0
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    over = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values))
    return over / sum((x - mean_x) ** 2 for x in range(n))


def table(seen: Sequence[Remains]) -> str:
    """Start, middle and end, and the slope of each column once it is warm."""
    columns = ("rss_mb", "fds", "threads", "children", "shm", "sockets")
    rows = {"first life": seen[0], "middle": seen[len(seen) // 2], "last life": seen[-1]}
    lines = [f"{'after':12}" + "".join(f"{name:>10}" for name in columns)]
    for what, one in rows.items():
        lines.append(f"{what:12}" + "".join(f"{getattr(one, name):10.4g}" for name in columns))
    warm = seen[WARM_LIVES - 1 :] if len(seen) >= WARM_LIVES else seen
    slopes = [slope([float(getattr(one, name)) for one in warm]) for name in columns]
    lines.append(f"{'a life':12}" + "".join(f"{value:+10.3f}" for value in slopes))
    return "\n".join(lines)
