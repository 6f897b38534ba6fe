"""The last words of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.errors import Fault, SpecError
from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.core.errors import (
    DeviceLost,
    EngineDeadError,
    EngineHung,
    InternalError,
    ModelError,
    OutOfDeviceMemory,
    RendezvousTimeout,
)
from stage_runtime.exit import ENV_TERMINATION_LOG, exit_code_of, report_of, write_report

CODES = {
    None: ExitCode.DRAINED,
    SpecError([Fault("spec.engine", "one thing", "another")]): ExitCode.CONFIG,
    ModelError("no weights"): ExitCode.MODEL,
    EngineDeadError("rank 1 was killed"): ExitCode.RANK_DIED,
    EngineHung("no progress"): ExitCode.HANG,
    DeviceLost("illegal access"): ExitCode.ACCELERATOR_FAULT,
    RendezvousTimeout("rank 1 is missing"): ExitCode.RENDEZVOUS_TIMEOUT,
    OutOfDeviceMemory("23 GB"): ExitCode.OUT_OF_MEMORY,
    InternalError("a law is broken"): ExitCode.RANK_DIED,
    KeyError("a bug"): ExitCode.RANK_DIED,
}


@pytest.mark.parametrize(("error", "code"), CODES.items(), ids=[type(error).__name__ for error in CODES])
def test_each_end_has_its_code(error: BaseException | None, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_a_report_says_what_and_which_life() -> None:
    assert report_of(DeviceLost("illegal access"), epoch=3) == TerminationReport(
        exit_code=ExitCode.ACCELERATOR_FAULT, reason="DeviceLost", message="illegal access", epoch=3
    )


def test_a_report_names_the_rank_at_fault_where_it_is_known() -> None:
    assert report_of(EngineHung("no progress", rank=3)).rank == 3
    assert report_of(EngineDeadError("rank 1 was killed")).rank is None


def test_a_report_is_written_where_the_environment_says(tmp_path: Path) -> None:
    path = tmp_path / "report"
    report = report_of(ModelError("no weights"))
    assert write_report(report, {ENV_TERMINATION_LOG: str(path)}) == path
    assert TerminationReport.decode(path.read_bytes()) == report


def test_a_report_that_cannot_be_written_does_not_hide_the_exit(tmp_path: Path) -> None:
    assert write_report(report_of(None), {ENV_TERMINATION_LOG: str(tmp_path / "missing" / "report")}) is None
