"""The last words of a process: an exit code and a report, made of what it ended with.

Writes the report where the environment says, or where the kubelet reads it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from stage_api import names
from stage_api.errors import SpecError
from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.core.error_codec import safe, words_of
from stage_runtime.core.errors import EngineDeadError, StageError

ENV_TERMINATION_LOG: Final = "OMNISTAGE_TERMINATION_LOG"  # path of the report, where there is no kubelet

log = logging.getLogger(__name__)


def exit_code_of(error: BaseException | None) -> ExitCode:
    """The code that tells why; None is an orderly end. What nothing here knows is our own bug: failed closed."""
    match error:
        case None:
            return ExitCode.DRAINED
        case SpecError():
            return ExitCode.CONFIG
        case StageError():
            return error.exit_code
    return ExitCode.RANK_DIED


def report_of(error: BaseException | None, *, epoch: int | None = None) -> TerminationReport:
    """The report of an end by `error`."""
    return TerminationReport(
        exit_code=exit_code_of(error),
        reason="Drained" if error is None else safe(type(error).__name__, 64),
        message="" if error is None else words_of(error, kind=False),
        rank=error.rank if isinstance(error, EngineDeadError) else None,
        epoch=epoch,
    )


def write_report(report: TerminationReport, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where it was written; None when there is no place for it. A failure is logged: the exit code still tells."""
    given = environ.get(ENV_TERMINATION_LOG)
    path = Path(given or names.TERMINATION_LOG)
    if given is None and not path.exists():
        return None
    try:
        path.write_bytes(report.encode())
    except OSError as error:
        log.warning("termination report not written", extra={"path": str(path), "error": str(error)})
        return None
    return path


def leave(error: BaseException | None, *, epoch: int | None = None) -> NoReturn:
    """Write the report and end the process with its code."""
    report = report_of(error, epoch=epoch)
    write_report(report)
    level = logging.INFO if error is None else logging.CRITICAL
    log.log(level, "leaving", extra={"exit_code": int(report.exit_code), "reason": report.reason})
    end_process(report.exit_code)


def end_process(code: int) -> NoReturn:
    """Get out what was written, and end with this code, whatever the process's threads are doing.

    NB: no finalisers run, since those of a poisoned device can hang, or crash and change the exit code.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
