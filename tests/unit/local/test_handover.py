"""What a local run and its pod hand each other, and that nothing is left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.local.handover import Handover
from stage_runtime.local.manifest import local_config, local_stage
from support.stage_process import EXAMPLE, PATIENCE_S, environment

POD = """
import os, sys
from stage_api.config import load
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import EngineHung
from stage_runtime.exit import report_of, write_report
config = load(sys.argv[1])
write_report(report_of(EngineHung("no progress", rank=1), epoch=2), {"OMNISTAGE_TERMINATION_LOG": sys.argv[2]})
print(config.name)
"""


def test_the_config_goes_down_and_the_last_words_come_up() -> None:
    with Handover(local_config(local_stage(EXAMPLE))) as handover:
        command = [sys.executable, "-c", POD, handover.config_path, handover.report_path]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        assert done.stdout == "shapes\n"
        assert handover.report() == TerminationReport(
            exit_code=ExitCode.HANG, reason="EngineHung", message="no progress", rank=1, epoch=2
        )
        handover.forget_report()
        assert handover.report() is None


def test_a_life_that_said_nothing_has_no_last_words() -> None:
    with Handover(local_config(local_stage(EXAMPLE))) as handover:
        assert handover.report() is None


def test_nothing_is_left_of_it() -> None:
    with Handover(local_config(local_stage(EXAMPLE))) as handover:
        config = Path(handover.config_path)
        assert config.read_text()
    with pytest.raises(FileNotFoundError):
        config.read_text()
