"""The same as with an executor that is told what to do, with ranks that are processes: one terminal event each.

The ranks have no model, so that many orders can be tried; what lies between them and the engine is real.
`OMNISTAGE_TEST_ORDERS` says how many orders are tried with each engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from stage_api.config import StageConfig
from stage_api.spec import ExtensionsSpec
from stage_runtime.assemble import build_engine
from stage_runtime.core.outcome import Output
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.pipelines.served_checkpoint import resolve_model
from support import light_runner
from support.any_order import QUEUE, SLOTS, AnyOrder
from support.mp_stage import a_config
from support.stage_process import ROOT

pytestmark = pytest.mark.timeout(600)

ORDERS = int(os.environ.get("OMNISTAGE_TEST_ORDERS", "25"))
STEPS_OF_AN_ORDER = 30


class RanksAnyOrder(AnyOrder):
    """One engine for all examples; it is at rest between two."""

    served: ClassVar[Engine]
    numbers: ClassVar[Iterator[int]] = count(1)

    @initialize()
    def start(self) -> None:
        self.engine = type(self).served
        self.example = next(type(self).numbers)

    def name(self, number: int) -> str:
        return f"e{self.example}-r{number}"

    def picture(self, request: Request) -> Output:
        return light_runner.picture(request)

    def leave(self) -> None:
        assert self.engine.phase == "ready", self.engine.death


def config_of(mode: str, copies: int) -> StageConfig:
    config = a_config(mode, data=copies, slots=SLOTS // copies)
    changes = {
        "extensions": ExtensionsSpec(runner="support.light_runner:LightRunner"),
        "max_queue_size": QUEUE,
    }
    return config.model_copy(update={"engine": config.engine.model_copy(update=changes)})


@pytest.fixture(params=[("request", 1), ("step", 1), ("step", 3)], ids=["request", "step", "three copies"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine without a thread, whose ranks find the runner."""
    path = [str(ROOT / one) for one in ("crds", "worker", "tests")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    config = config_of(*request.param)
    engine = build_engine(config, resolve_model(config.model))
    engine.load()
    yield engine
    engine.close()


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
@pytest.mark.invariant("DIFF-RUNTIME-INV-005")
@pytest.mark.invariant("BATCH-INV-003")
def test_whatever_happens_in_any_order_each_request_ends_once_and_nothing_is_left(engine: Engine) -> None:
    RanksAnyOrder.served = engine
    run_state_machine_as_test(
        RanksAnyOrder,
        settings=settings(
            max_examples=ORDERS,
            stateful_step_count=STEPS_OF_AN_ORDER,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
