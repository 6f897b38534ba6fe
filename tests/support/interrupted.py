"""Plain diffusers, interrupted after a turn of its own loop: what a preview must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from stage_runtime.core.request import Request
from support.hub_stage import plain


class StoppingBar:
    """A progress bar that interrupts its pipeline after so many turns."""

    def __init__(self, pipeline: Any, after: int) -> None:
        self.pipeline, self.left = pipeline, after

    def __enter__(self) -> StoppingBar:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def set_postfix(self, **_shown: object) -> None:
        return

    def update(self, count: int = 1) -> None:
        self.left -= count
        self.pipeline._interrupt = self.pipeline._interrupt or self.left <= 0


def interrupted(pipeline: Any, request: Request, after: int) -> np.ndarray:
    """What plain diffusers makes of a request that is interrupted after so many turns of its loop."""
    pipeline.progress_bar = lambda iterable=None, total=None: StoppingBar(pipeline, after)
    try:
        return plain(pipeline, request, "np")
    finally:
        del pipeline.progress_bar
