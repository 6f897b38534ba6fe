"""How a pod says why it ended: its exit code and its last words.

The reader switches on the enum, never on the text of a log.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, ValidationError

from stage_api.base import Contract

MAX_REPORT_BYTES: Final = 4096  # the kubelet keeps no more of a container's termination message


class ExitCode(IntEnum):
    """Why a pod's process ended. After 64 and 65 it is never restarted; after 70 to 74 it may help."""

    DRAINED = 0
    CONFIG = 64
    MODEL = 65
    RANK_DIED = 70
    HANG = 71
    ACCELERATOR_FAULT = 72
    RENDEZVOUS_TIMEOUT = 73
    OUT_OF_MEMORY = 74

    @property
    def meaning(self) -> str:
        """The code in words."""
        return _MEANING[self]

    @property
    def retryable(self) -> bool:
        """Whether the same spec may fare better on another try. After DRAINED there is nothing to retry."""
        return self not in (ExitCode.DRAINED, ExitCode.CONFIG, ExitCode.MODEL)

    @classmethod
    def of(cls, status: int) -> ExitCode | None:
        """The code of an exit status, or None if it isn't one of ours (137, 255 ...)."""
        return cls(status) if status in _CODES else None


_CODES: Final = frozenset(ExitCode)

_MEANING: Final = {
    ExitCode.DRAINED: "asked to stop; what ran was finished",
    ExitCode.CONFIG: "the config or topology is invalid, asks for what this version can't execute, "
    "or for an address that can't be listened on",
    ExitCode.MODEL: "the model is missing, broken or incompatible with the spec",
    ExitCode.RANK_DIED: "a rank died, and the whole replica with it",
    ExitCode.HANG: "no progress within the deadline",
    ExitCode.ACCELERATOR_FAULT: "the device is in a state that no process gets it out of; avoid the node",
    ExitCode.RENDEZVOUS_TIMEOUT: "the ranks did not meet in time",
    ExitCode.OUT_OF_MEMORY: "device memory did not suffice to start",
}


class TerminationReport(Contract):
    """A pod's last words."""

    # An older reader must understand a newer pod.
    model_config = ConfigDict(extra="ignore")

    exit_code: Annotated[ExitCode, Field(strict=False)] = Field(description="Why the process ended.")
    reason: Annotated[str, Field(max_length=64)] = Field(description="Why, as one CamelCase word.")
    message: str = Field("", description="Why, for people. Cut if the report would get too long.")
    rank: int | None = Field(default=None, description="The rank at fault, if it was one.")
    epoch: int | None = Field(default=None, description="The epoch that ended.")

    def encode(self) -> bytes:
        """The report as JSON of at most `MAX_REPORT_BYTES`; of a long message the start remains."""
        whole = self._bytes(self.message)
        if len(whole) <= MAX_REPORT_BYTES:
            return whole
        fits, too_long = 0, len(self.message)
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if len(self._bytes(self.message[:middle] + "…")) <= MAX_REPORT_BYTES:
                fits = middle
            else:
                too_long = middle
        return self._bytes(self.message[:fits] + "…")

    @classmethod
    def decode(cls, text: str | bytes) -> Self | None:
        """The report in a termination message; None if it holds something else."""
        try:
            return cls.model_validate(json.loads(text), by_alias=True, by_name=False)
        except (ValueError, RecursionError, ValidationError):
            return None

    def _bytes(self, message: str) -> bytes:
        fields = {**self.model_dump(mode="json", by_alias=True, exclude_none=True), "message": message}
        # A lone surrogate (a file name that isn't UTF-8, in an OSError's text) becomes "?".
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
