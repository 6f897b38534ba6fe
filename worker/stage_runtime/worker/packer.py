"""Gets finished outputs off the device and out of the process while the device works on: a thread of its own.

It converts what a pipeline has made, puts large bytes into shared memory, and sends them. What it can't pack fails
that request, with its cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final

import torch
from msgspec import Struct

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.outcome import Completed, Failed, Output, failed
from stage_runtime.devices.kinds import compute_device
from stage_runtime.ipc.codec import detach
from stage_runtime.ipc.messages import OutputReady
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender
from stage_runtime.runner.output import Made

LANE: Final = "pack"
CANNOT_PACK: Final = "the output can't be packed"
CLOSE_S: Final = 5.0

log = logging.getLogger(__name__)


class _Job(Struct, frozen=True):
    made: Made
    wave_id: int
    computed: torch.Event | None
    """Told when the device is done with it; None where it is done at once."""


class Packer:
    """Takes what was made from the rank's main thread; the rest happens in its own."""

    def __init__(
        self,
        rank: int,
        convert: Callable[[Any], Output],
        *,
        device: torch.device,
        connect: Callable[[], RankChannel],
        sender: Sender | None,
    ) -> None:
        """`connect` opens the packer's own channel: it is called, and the channel used, in the packer's thread.

        Returns once that is done, since the engine stops listening when all ranks are ready. Raises: what it raised.
        """
        self._rank, self._convert, self._sender = rank, convert, sender
        self._compute = compute_device(device)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._wanted: dict[str, int] = {}
        """Wave of entry of each request whose output is still to be sent."""
        self._connected = Event()
        self._refused: BaseException | None = None
        self._thread = Thread(target=self._run, args=(connect,), name="packer", daemon=True)
        self._thread.start()
        self._connected.wait()  # `connect` has a deadline of its own
        if self._refused is not None:
            raise self._refused

    def take(self, made: Made, wave_id: int) -> None:
        """Pack this and send it, soon."""
        computed = self._compute.record()
        with self._lock:
            self._wanted[made.request_id] = wave_id
        self._jobs.put(_Job(made, wave_id, computed))

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nobody wants these any more."""
        with self._lock:
            for request_id in request_ids:
                self._wanted.pop(request_id, None)

    def __len__(self) -> int:
        """Outputs that are still to be sent."""
        return len(self._wanted)

    def close(self) -> None:
        """End the thread after what it has."""
        self._jobs.put(None)
        self._thread.join(CLOSE_S)

    def _run(self, connect: Callable[[], RankChannel]) -> None:
        try:
            channel = connect()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
            self._refused = error
            return
        finally:
            self._connected.set()
        stream = self._compute.side_stream()
        try:
            while (job := self._jobs.get()) is not None:
                if self._wants(job):
                    reply = self._packed(job, stream)
                    with self._lock:
                        self._wanted.pop(job.made.request_id, None)
                    channel.send(reply)
                del job  # nothing of it is held while the next one is awaited
        finally:
            channel.close()

    def _wants(self, job: _Job) -> bool:
        with self._lock:
            return self._wanted.get(job.made.request_id) == job.wave_id

    def _packed(self, job: _Job, stream: torch.Stream | None) -> OutputReady:
        made = job.made
        outcome: Completed | Failed
        try:
            if stream is None or job.computed is None:
                output = self._convert(made.result)
            else:
                stream.wait_event(job.computed)
                with stream:
                    output = self._convert(made.result)
            outcome = Completed(made.request_id, output, made.steps, made.phases)
            outcome, parcel = detach(outcome, None if self._sender is None else self._sender.place)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this output's end and no other's
            log.warning(
                "output can't be packed", extra={"request_id": made.request_id, "why": words_of(error)[:200]}
            )
            outcome, parcel = failed(made.request_id, error, CANNOT_PACK), None
        return OutputReady(rank=self._rank, wave_id=job.wave_id, outcome=outcome, parcel=parcel)
