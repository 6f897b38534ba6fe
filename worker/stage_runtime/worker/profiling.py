"""Traces of what a rank does, by torch's own profiler, from one control call to another."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from stage_runtime.core.control import TRACE_PIECE_BYTES
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.devices.kinds import compute_device

log = logging.getLogger(__name__)


class Profiling:
    """At most one recording. Starts and ends on the thread that ticks, since it records that thread's operations."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._profile: torch.profiler.profile | None = None
        self._path = Path()
        self._written: Path | None = None

    def start(self, folder: str) -> None:
        """Record from now on, for a file in `folder`, which is made.

        Raises: InvalidRequest when a recording is under way, or the folder can't be written to.
        """
        if self._profile is not None:
            raise InvalidRequest(f"a profile is being recorded already, for {self._path}")
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._path = Path(folder) / f"rank{self._rank}-{at}.json.gz"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # What is noticed only when the trace is written has cost the recording.
            probe = self._path.with_suffix(".probe")
            probe.touch()
            probe.unlink()
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise InvalidRequest(
                f"folder: expected one that can be written to, got {folder}: {why}", "folder"
            ) from error
        profile = torch.profiler.profile(activities=compute_device(self._device).profiled())
        profile.start()
        self._profile = profile

    def stop(self) -> str:
        """Write the trace; returns its path. Raises: InvalidRequest when nothing is recorded; OSError."""
        profile, self._profile = self._profile, None
        if profile is None:
            raise InvalidRequest("no profile is being recorded")
        profile.stop()
        profile.export_chrome_trace(str(self._path))
        self._written = self._path
        return str(self._path)

    def read(self, offset: int) -> bytes:
        """A piece of the trace that was written last, from `offset` on; empty after its end.

        Raises: InvalidRequest when there is none, or none any more.
        """
        if self._written is None:
            raise InvalidRequest("no profile has been recorded")
        try:
            with self._written.open("rb") as file:
                file.seek(offset)
                return file.read(TRACE_PIECE_BYTES)
        except OSError as error:
            raise InvalidRequest(f"the trace can't be read: {error.strerror or error}") from error

    def close(self) -> None:
        """End a recording that nobody has ended. It is not written: writing may take minutes."""
        profile, self._profile = self._profile, None
        if profile is not None:
            log.warning("a profile was still being recorded and is lost", extra={"path": str(self._path)})
            with suppress(RuntimeError):
                profile.stop()
