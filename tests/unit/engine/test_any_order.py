"""Whatever callers, consumers and the device do, in any order: one terminal event each, and nothing left over."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stage_runtime.core.outcome import Completed
from stage_runtime.core.request import Request
from support.any_order import QUEUE, SLOTS, AnyOrder
from support.builders import EngineBuilder
from support.scripted import ManualClock, ScriptedExecutor, pixel


class ScriptedAnyOrder(AnyOrder):
    """Time moves by hand; the device fails, stalls, answers late and dies when told to."""

    executor: ScriptedExecutor

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()

    @initialize(step_mode=st.booleans(), max_wait_s=st.sampled_from([0.0, 1.0]))
    def start(self, step_mode: bool, max_wait_s: float) -> None:
        builder = (
            EngineBuilder().slots(SLOTS).queue(QUEUE).max_wait(max_wait_s).clock(self.clock, step_s=0.01)
        )
        self.engine, self.executor = (builder.step_mode() if step_mode else builder).loaded()

    def added(self, request: Request, fail_at: int) -> None:
        if fail_at:
            self.executor.fail(request.request_id, ValueError("nan"), at_step=fail_at)

    @rule(seconds=st.sampled_from([0.05, 1.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(request_id=AnyOrder.ids, at_step=st.integers(1, 4))
    def fail(self, request_id: str, at_step: int) -> None:
        self.failing.add(request_id)
        self.executor.fail(request_id, ValueError("nan"), at_step=at_step)

    @rule(request_id=AnyOrder.ids)
    def stall(self, request_id: str) -> None:
        self.executor.stall(request_id)

    @rule(request_id=AnyOrder.ids)
    def unstall(self, request_id: str) -> None:
        self.executor.unstall(request_id)

    @rule(request_id=AnyOrder.ids)
    def answer_late(self, request_id: str) -> None:
        """The device answers once more for a request that has ended."""
        if request_id in self.streams and self.streams[request_id].ended:
            self.executor.say_late(Completed(request_id, pixel(0), 1))

    @rule()
    def die(self) -> None:
        if self.count > 6:
            self.executor.die()

    @rule()
    def close(self) -> None:
        if self.count > 6:
            self.engine.close()

    def settle(self) -> None:
        for request_id in list(self.streams):
            self.executor.unstall(request_id)
        self.clock.advance(10.0)


TestAnyOrder = pytest.mark.invariant("DIFF-RUNTIME-INV-001")(
    pytest.mark.invariant("DIFF-RUNTIME-INV-003")(ScriptedAnyOrder.TestCase)
)
