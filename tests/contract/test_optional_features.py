"""What may be switched on watches or wraps the one lifecycle; it neither has one of its own nor changes what runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from check_sizes import ROOT
from stage_runtime.core.outcome import Outcome
from stage_runtime.core.wave import Wave
from stage_runtime.metrics import Metrics
from support.builders import EngineBuilder, some_requests, tick_out
from support.scripted import ManualClock

RUNTIME = ROOT / "worker" / "stage_runtime"


def imported(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def run(*, observed: bool) -> tuple[list[Wave], dict[str, list[Outcome]]]:
    """The waves and outcomes of three requests of which one is taken back."""
    builder = EngineBuilder().step_mode().slots(2).clock(ManualClock(), step_s=0.25)
    engine, executor = builder.loaded()
    if observed:
        engine.observe(Metrics("shapes"))
    streams = engine.add(some_requests("abc"))
    engine.tick()
    engine.abort("b")
    tick_out(engine)
    waves = executor.waves
    engine.close()
    return waves, {stream.request_id: list(stream) for stream in streams}


@pytest.mark.invariant("DIFF-RUNTIME-INV-004")
def test_only_the_scheduler_moves_a_request_through_its_life() -> None:
    lifecycle = "stage_runtime.sched.lifecycle"
    users = {path.parent.name for path in RUNTIME.rglob("*.py") if lifecycle in imported(path)}
    assert users == {"sched"}


@pytest.mark.invariant("DIFF-RUNTIME-INV-004")
def test_metrics_change_no_wave_and_no_outcome() -> None:
    assert run(observed=True) == run(observed=False)
