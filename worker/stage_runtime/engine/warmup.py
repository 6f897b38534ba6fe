"""Runs dummy requests through the very same path as real ones, before any are admitted."""

from __future__ import annotations

from collections.abc import Sequence

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.core.errors import ModelError, OutOfDeviceMemory, OutOfMemory, RequestError
from stage_runtime.core.request import Request
from stage_runtime.core.starting import Tell
from stage_runtime.engine.loop import Loop
from stage_runtime.engine.request_table import RequestTable
from stage_runtime.engine.streams import Stream


def warm_up(table: RequestTable, loop: Loop, groups: Sequence[Sequence[Request]], tell: Tell) -> None:
    """Run the requests of each group together to their end, group after group. Returns early when the loop is stopped.

    `tell` gets how far it is.

    Raises: OutOfDeviceMemory when a request doesn't fit; ModelError when one fails otherwise; EngineDeadError.
    """
    total, done = sum(map(len, groups)), 0
    for group in groups:
        tell(StartProgress(activity=Activity.WARMING, done=done, total=total))
        done += len(group)
        streams = table.admit(group, warm_up=True)
        while not all(stream.ended for stream in streams):
            if loop.stopped:
                return
            if not loop.tick():
                loop.rest()
        for stream in streams:
            _check(stream)
    loop.tick()  # the runner forgets the last of them, so that warm-up leaves nothing


def _check(stream: Stream) -> None:
    try:
        stream.result()
    except OutOfMemory as error:
        raise OutOfDeviceMemory(f"warm-up request {stream.request_id} does not fit: {error}") from error
    except RequestError as error:
        raise ModelError(f"warm-up request {stream.request_id} failed: {error}") from error
