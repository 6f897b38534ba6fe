"""Step mode: continuous batching, one denoise step at a time."""

from __future__ import annotations

from stage_runtime.sched.base import BaseScheduler


class StepScheduler(BaseScheduler):
    """Who comes late joins at the next step, as soon as a slot is free."""

    def _lets_join(self) -> bool:
        return True
