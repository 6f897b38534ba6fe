"""Which scheduler an execution mode means. Resolved once, at start."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.request import RequestScheduler
from stage_runtime.sched.step import StepScheduler


class Mode(StrEnum):
    """How requests share the device."""

    REQUEST = "request"
    STEP = "step"


SCHEDULERS: Final[Mapping[Mode, type[BaseScheduler]]] = {
    Mode.REQUEST: RequestScheduler,
    Mode.STEP: StepScheduler,
}
