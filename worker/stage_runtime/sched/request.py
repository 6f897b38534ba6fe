"""Request mode: a wave is one whole forward of its members."""

from __future__ import annotations

from stage_runtime.sched.base import BaseScheduler


class RequestScheduler(BaseScheduler):
    """A wave's members are fixed until all have ended; who comes late joins the next wave."""

    def _lets_join(self) -> bool:
        return not self._running
