"""What a local run and its pod hand each other: the config one way, the termination report the other.

Both are files in memory that end with the run, however it dies: nothing is left in a folder.
"""

from __future__ import annotations

import os
from typing import Final, Self

from stage_api import names
from stage_api.config import StageConfig
from stage_api.outcome import MAX_REPORT_BYTES, TerminationReport

_REPORT_NAME: Final = "termination-report"


class Handover:
    """The two files. Their paths are good for all that runs below this process, as long as it lives."""

    def __init__(self, config: StageConfig) -> None:
        self._config = os.memfd_create(names.CONFIG_FILE)
        self._report = os.memfd_create(_REPORT_NAME)
        with open(self._config, "w", encoding="utf-8", closefd=False) as file:
            file.write(config.encode())

    @property
    def config_path(self) -> str:
        """Where the pod reads its config."""
        return _path(self._config)

    @property
    def report_path(self) -> str:
        """Where the pod writes its last words."""
        return _path(self._report)

    def forget_report(self) -> None:
        """Another life begins."""
        os.truncate(self._report, 0)

    def report(self) -> TerminationReport | None:
        """The last words of the life that ended, if it left any."""
        return TerminationReport.decode(os.pread(self._report, MAX_REPORT_BYTES, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._config)
        os.close(self._report)


def _path(fd: int) -> str:
    # By the number of this process, not as /proc/self: in another process the same number is another file.
    return f"/proc/{os.getpid()}/fd/{fd}"
