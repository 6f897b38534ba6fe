"""Runs dummy requests through the very same path as real ones, before any are admitted."""

from __future__ import annotations

from collections.abc import Sequence

from stage_runtime.core.errors import ModelError, OutOfDeviceMemory, OutOfMemory, RequestError
from stage_runtime.core.request import Request
from stage_runtime.engine.desk import Desk
from stage_runtime.engine.loop import Loop


def warm_up(desk: Desk, loop: Loop, requests: Sequence[Request]) -> None:
    """Run `requests` to their end, one after the other. Returns early when the loop is stopped.

    Raises: OutOfDeviceMemory when one doesn't fit; ModelError when one fails otherwise; EngineDeadError.
    """
    for request in requests:
        (stream,) = desk.admit([request], warm_up=True)
        while not stream.ended:
            if loop.stopped:
                return
            if not loop.tick():
                loop.rest()
        try:
            stream.result()
        except OutOfMemory as error:
            raise OutOfDeviceMemory(f"warm-up request {request.request_id} does not fit: {error}") from error
        except RequestError as error:
            raise ModelError(f"warm-up request {request.request_id} failed: {error}") from error
    loop.tick()  # the runner forgets the last of them, so that warm-up leaves nothing
