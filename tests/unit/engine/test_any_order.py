"""Whatever callers, consumers and the device do, in any order: one terminal event each, and nothing left over."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import AdmissionFull, EngineDeadError, NotAdmitting
from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Progressed, failed
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.streams import Stream
from support.builders import EngineBuilder, RequestBuilder, held, tick_out
from support.scripted import ManualClock, ScriptedExecutor, pixel

SLOTS, QUEUE = 3, 6
CLOSED = failed("", NotAdmitting("")).code


class AnyOrder(RuleBasedStateMachine):
    """One engine without a thread, ticked by hand."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.streams: dict[str, Stream] = {}
        self.events: dict[str, list[Outcome]] = defaultdict(list)
        self.failing: set[str] = set()
        self.count = 0
        self.engine: Engine
        self.executor: ScriptedExecutor

    @initialize(step_mode=st.booleans(), max_wait_s=st.sampled_from([0.0, 1.0]))
    def start(self, step_mode: bool, max_wait_s: float) -> None:
        builder = (
            EngineBuilder().slots(SLOTS).queue(QUEUE).max_wait(max_wait_s).clock(self.clock, step_s=0.01)
        )
        self.engine, self.executor = (builder.step_mode() if step_mode else builder).loaded()

    @rule(target=ids, steps=st.integers(1, 4), wide=st.booleans(), previews=st.booleans())
    def add(self, steps: int, wide: bool, previews: bool) -> str:
        self.count += 1
        builder = RequestBuilder(f"r{self.count}").steps(steps).seed(self.count).size(64, 128 if wide else 64)
        request = (builder.previews(*range(1, steps)) if previews else builder).build()
        try:
            (self.streams[request.request_id],) = self.engine.add([request])
        except AdmissionFull:
            assert self.engine.snapshot().waiting == QUEUE
        except (NotAdmitting, EngineDeadError):
            assert self.engine.phase in ("closed", "dead")
        return request.request_id

    @rule()
    def tick(self) -> None:
        self.engine.tick()

    @rule(seconds=st.sampled_from([0.05, 1.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(request_id=ids)
    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    @rule(request_id=consumes(ids))
    def drop(self, request_id: str) -> None:
        self.streams.pop(request_id, None)
        self.events.pop(request_id, None)

    @rule(request_id=ids)
    def close_stream(self, request_id: str) -> None:
        if request_id in self.streams:
            self.read()
            self.streams[request_id].close()
            assert self.streams[request_id].ended
            self.drop(request_id)

    @rule(request_id=ids, at_step=st.integers(1, 4))
    def fail(self, request_id: str, at_step: int) -> None:
        self.failing.add(request_id)
        self.executor.fail(request_id, ValueError("nan"), at_step=at_step)

    @rule(request_id=ids)
    def stall(self, request_id: str) -> None:
        self.executor.stall(request_id)

    @rule(request_id=ids)
    def unstall(self, request_id: str) -> None:
        self.executor.unstall(request_id)

    @rule(request_id=ids)
    def stop_early(self, request_id: str) -> None:
        self.engine.control(StopEarly(request_id))

    @rule(request_id=ids)
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

    @rule()
    def read(self) -> None:
        for request_id, stream in self.streams.items():
            while (outcome := stream.take()) is not None:
                self.events[request_id].append(outcome)

    @invariant()
    def slots_and_line_are_bounded(self) -> None:
        load = self.engine.snapshot()
        assert load.running <= SLOTS
        assert load.waiting <= QUEUE

    @invariant()
    def nothing_comes_after_a_terminal_event(self) -> None:
        for events in self.events.values():
            assert all(isinstance(event, Progressed) for event in events[:-1])

    def teardown(self) -> None:
        for request_id in list(self.streams):
            self.executor.unstall(request_id)
        self.clock.advance(10.0)
        tick_out(self.engine)
        self.read()
        for request_id in self.streams:
            self.check_end(request_id, self.events[request_id])
        if self.engine.phase == "ready":
            assert not any(held(self.engine).values())
        assert self.engine.snapshot().outstanding_cost == 0
        self.engine.close()

    def check_end(self, request_id: str, events: list[Outcome]) -> None:
        """Exactly one terminal event, its own, after steps that only rise."""
        *before, last = events
        assert isinstance(last, Completed | Aborted | Failed)
        assert all(event.request_id == request_id for event in events)
        steps = [event.step for event in before if isinstance(event, Progressed)]
        assert steps == sorted(set(steps))
        if isinstance(last, Completed):
            assert last.output == pixel(int(request_id[1:]))
        if isinstance(last, Failed) and last.code not in (CLOSED, EngineDeadError.code):
            assert request_id in self.failing


TestAnyOrder = pytest.mark.invariant("DIFF-RUNTIME-INV-001")(
    pytest.mark.invariant("DIFF-RUNTIME-INV-003")(AnyOrder.TestCase)
)
