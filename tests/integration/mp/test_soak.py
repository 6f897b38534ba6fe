"""Full load with aborts, consumers that go away and killed ranks leaves nothing. `make soak` runs ten minutes of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.stage_process import ROOT, environment

THREE_LIVES = ("--lives", "3", "--life", "2", "--seed", "1")
"""One more than it takes to be warm, in three layouts; the first ends with a killed rank."""
A_MINUTE = ("--minutes", "1", "--life", "5")


@pytest.mark.timeout(300)
@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
@pytest.mark.invariant("BATCH-INV-002")
@pytest.mark.parametrize(
    "length", [THREE_LIVES, pytest.param(A_MINUTE, marks=pytest.mark.sweep)], ids=["three lives", "a minute"]
)
def test_load_with_aborts_drops_and_killed_ranks_leaves_nothing(length: tuple[str, ...]) -> None:
    """Case B36."""
    soak = [sys.executable, "-m", "benchmarks", "soak", *length]
    done = subprocess.run(
        soak, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert " completed" in done.stdout
    assert " killed " in done.stdout
