"""Callers, consumers and requests in any order: what must hold of an engine without a thread, whatever carries it out.

A test adds how its executor is made and what else may befall it.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import AdmissionFull, EngineDeadError, NotAdmitting
from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Output, Progressed, failed
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.streams import Stream
from support.builders import RequestBuilder, held, tick_out
from support.scripted import pixel

SLOTS, QUEUE = 3, 6
CLOSED = failed("", NotAdmitting("")).code


class AnyOrder(RuleBasedStateMachine):
    """One engine, ticked by hand."""

    ids = Bundle("ids")
    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, Stream] = {}
        self.events: dict[str, list[Outcome]] = defaultdict(list)
        self.requests: dict[str, Request] = {}
        self.failing: set[str] = set()
        self.count = 0

    def name(self, number: int) -> str:
        """Of the request with this number."""
        return f"r{number}"

    def picture(self, request: Request) -> Output:
        """What a request comes to."""
        return pixel(request.seed)

    def added(self, request: Request, fail_at: int) -> None:
        """A request was admitted, which is to fail instead of its step `fail_at`, unless that is 0."""

    @rule(
        target=ids,
        steps=st.integers(1, 4),
        wide=st.booleans(),
        previews=st.booleans(),
        fail_at=st.sampled_from([0, 0, 0, 1, 3]),
    )
    def add(self, steps: int, wide: bool, previews: bool, fail_at: int) -> str:
        self.count += 1
        builder = RequestBuilder(self.name(self.count)).steps(steps).seed(self.count)
        builder = builder.size(64, 128 if wide else 64).argument("fail_at", fail_at)
        request = (builder.previews(*range(1, steps)) if previews else builder).build()
        try:
            (self.streams[request.request_id],) = self.engine.add([request])
        except AdmissionFull:
            assert self.engine.snapshot().waiting == QUEUE
        except (NotAdmitting, EngineDeadError):
            assert self.engine.phase in ("closed", "dead")
        else:
            self.requests[request.request_id] = request
            if fail_at:
                self.failing.add(request.request_id)
            self.added(request, fail_at)
        return request.request_id

    @rule()
    def tick(self) -> None:
        self.engine.tick()

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

    @rule(request_id=ids)
    def stop_early(self, request_id: str) -> None:
        self.engine.control(StopEarly(request_id))

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
        self.settle()
        tick_out(self.engine)
        self.read()
        for request_id in self.streams:
            self.check_end(request_id, self.events[request_id])
        if self.engine.phase == "ready":
            assert not any(held(self.engine).values())
        assert self.engine.snapshot().outstanding_cost == 0
        self.leave()

    def settle(self) -> None:
        """Let everything that is held back go on."""

    def leave(self) -> None:
        """Done with the engine."""
        self.engine.close()

    def check_end(self, request_id: str, events: list[Outcome]) -> None:
        """Exactly one terminal event, its own, after steps that only rise."""
        *before, last = events
        assert isinstance(last, Completed | Aborted | Failed)
        assert all(event.request_id == request_id for event in events)
        steps = [event.step for event in before if isinstance(event, Progressed)]
        assert steps == sorted(set(steps))
        if isinstance(last, Completed):
            assert last.output == self.picture(self.requests[request_id])
        if isinstance(last, Failed) and last.code not in (CLOSED, EngineDeadError.code):
            assert request_id in self.failing
