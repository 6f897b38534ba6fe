"""A minute of full load with aborts, consumers that go away and killed ranks leaves nothing. `make soak` runs ten."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.stage_process import ROOT, environment


@pytest.mark.timeout(300)
@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
@pytest.mark.invariant("BATCH-INV-002")
def test_a_minute_of_load_with_aborts_drops_and_killed_ranks_leaves_nothing() -> None:
    """Case B36."""
    soak = [sys.executable, "-m", "benchmarks", "soak", "--minutes", "1", "--life", "5"]
    done = subprocess.run(
        soak, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert " completed" in done.stdout
