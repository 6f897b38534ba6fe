"""What a long start is doing is told while it does it, and no longer."""

from __future__ import annotations

import logging

import pytest

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.engine.phase import Phase
from support.builders import EngineBuilder, a_request
from support.scripted import PATIENCE_S, Gate, ScriptedExecutor


def test_what_builds_the_executor_is_told_until_requests_are_admitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()

    def build() -> ScriptedExecutor:
        for done in range(3):
            engine.note_start(StartProgress(activity=Activity.LOADING, what="vae", done=done, total=3))
        gate.pass_through()
        return ScriptedExecutor()

    engine = EngineBuilder().executor(build).build()
    assert engine.start_progress is None
    with caplog.at_level(logging.INFO):
        engine.start()
        gate.wait_arrival()
        assert engine.start_progress == StartProgress(activity=Activity.LOADING, what="vae", done=2, total=3)
        gate.open()
        engine.wait_ready(PATIENCE_S)
    assert engine.start_progress is None
    told = [record.__dict__["doing"] for record in caplog.records if record.message == "starting"]
    assert told == ["loading the model: vae, 0 of 3 components"]
    engine.close()


def test_warming_up_is_counted_in_requests() -> None:
    seen: list[StartProgress | None] = []

    class Seeing(ScriptedExecutor):
        def submit(self, wave: object) -> None:
            seen.append(engine.start_progress)
            super().submit(wave)  # type: ignore[arg-type]

    engine = EngineBuilder().executor(Seeing).warmup(a_request("w")).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    assert engine.phase is Phase.READY
    assert seen[0] == StartProgress(activity=Activity.WARMING, done=0, total=1)
    engine.close()
