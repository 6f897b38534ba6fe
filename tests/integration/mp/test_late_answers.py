"""Ranks whose calls are answered from elsewhere: the engine goes on with the others, and every request ends."""

from __future__ import annotations

import os

import pytest

from stage_api.spec import ExtensionsSpec
from stage_runtime.core.outcome import Completed
from support.builders import RequestBuilder
from support.mp_stage import PATIENCE_S, a_config, serving
from support.stage_process import ROOT


@pytest.mark.parametrize("mode", ["step", "request"])
def test_what_is_answered_late_ends_and_holds_up_neither_neighbours_nor_newcomers(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / one) for one in ("crds", "worker", "tests")))
    config = a_config(mode)
    runner = ExtensionsSpec(runner="support.late_runner:LateRunner")
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"extensions": runner})})
    with serving(config) as engine:
        asked = [("late-a", 20), ("b", 3), ("late-c", 5), ("late-gone", 200)]
        streams = engine.add([RequestBuilder(name).steps(steps).build() for name, steps in asked])
        engine.abort("late-gone")
        newcomer = engine.add([RequestBuilder("late-d").steps(2).build()])
        for stream in (*streams[:3], *newcomer):
            assert isinstance(stream.result(PATIENCE_S), Completed)
