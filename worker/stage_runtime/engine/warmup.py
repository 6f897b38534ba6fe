"""Runs dummy requests through the very same path as real ones, before any are admitted."""

from __future__ import annotations

from collections.abc import Sequence

from stage_runtime.core.errors import EngineDeadError, ModelError, RequestError
from stage_runtime.core.request import Request
from stage_runtime.engine.desk import Desk
from stage_runtime.engine.loop import Loop


def warm_up(desk: Desk, loop: Loop, requests: Sequence[Request]) -> None:
    """Run `requests` to their end, one after the other. Returns early when the loop is stopped.

    Raises: ModelError when one of them fails; EngineDeadError when the group dies of it.
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
        except EngineDeadError:
            raise
        except RequestError as error:
            raise ModelError(f"warm-up request {request.request_id} failed: {error}") from error
    loop.tick()  # the runner forgets the last of them, so that warm-up leaves nothing
