"""Requests and engines for tests: name what matters, leave the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from stage_api.spec import Mode
from stage_runtime.assemble import SCHEDULERS
from stage_runtime.core.request import BatchKey, Request, Value
from stage_runtime.engine.engine import Engine
from stage_runtime.executor.base import Executor
from stage_runtime.sched.admission import Coalescing
from stage_runtime.sched.base import BaseScheduler
from support.scripted import PATIENCE_S, ManualClock, ScriptedExecutor, Workshop


class RequestBuilder:
    """Builds one request of 4 steps and 64 × 64 pixels unless told otherwise."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._steps = 4
        self._height, self._width = 64, 64
        self._seed = 0
        self._arguments: dict[str, Value] = {"prompt": "a red circle"}
        self._preview_steps: tuple[int, ...] = ()

    def steps(self, steps: int) -> Self:
        """Denoise steps."""
        self._steps = steps
        return self

    def size(self, height: int, width: int) -> Self:
        """Pixels, which are the batch key too."""
        self._height, self._width = height, width
        return self

    def seed(self, seed: int) -> Self:
        """What tells its picture from others: `pixel(seed)` in ScriptedExecutor."""
        self._seed = seed
        return self

    def previews(self, *steps: int) -> Self:
        """After which steps a preview is wanted."""
        self._preview_steps = steps
        return self

    def argument(self, name: str, value: Value) -> Self:
        """A pipeline argument."""
        self._arguments[name] = value
        return self

    def build(self) -> Request:
        """The request."""
        shared: dict[str, Value] = {"height": self._height, "width": self._width}
        return Request(
            request_id=self._request_id,
            arguments=self._arguments | shared | {"num_inference_steps": self._steps},
            key=BatchKey(tuple(shared.items())),
            seed=self._seed,
            steps=self._steps,
            pixels=self._height * self._width,
            preview_steps=self._preview_steps,
        )


def a_request(request_id: str = "a", steps: int = 4) -> Request:
    """A request like any other."""
    return RequestBuilder(request_id).steps(steps).build()


def some_requests(ids: Iterable[str], steps: int = 4) -> list[Request]:
    """One request per id, all of one batch key: "abc" makes three."""
    return [a_request(request_id, steps) for request_id in ids]


class EngineBuilder:
    """Builds an engine: request mode, one slot, a line of 64, a ScriptedExecutor, real time."""

    def __init__(self) -> None:
        self._mode = Mode.REQUEST
        self._slots = 1
        self._queue = 64
        self._coalescing = Coalescing()
        self._warmup: tuple[Request, ...] = ()
        self._workshop = Workshop()
        self._build: Callable[[], Executor] = self._workshop
        self._clock: Callable[[], float] = time.monotonic
        self._startup_timeout_s = 20.0

    def step_mode(self) -> Self:
        """Late ones join at the next step."""
        self._mode = Mode.STEP
        return self

    def slots(self, slots: int) -> Self:
        """max_num_seqs."""
        self._slots = slots
        return self

    def queue(self, outputs: int) -> Self:
        """max_queue_size."""
        self._queue = outputs
        return self

    def max_wait(self, seconds: float) -> Self:
        """Hold a wave back for so long."""
        self._coalescing = Coalescing(seconds)
        return self

    def warmup(self, *requests: Request) -> Self:
        """Requests to run before it is ready."""
        self._warmup = requests
        return self

    def executor(self, build: Callable[[], Executor]) -> Self:
        """What builds the executor, in the thread that uses it."""
        self._build = build
        return self

    def prepare(self, prepare: Callable[[ScriptedExecutor], None]) -> Self:
        """What the ScriptedExecutor is told before anything uses it."""
        self._workshop.prepare = prepare
        return self

    def clock(self, clock: ManualClock, *, step_s: float = 0.0) -> Self:
        """Time that moves by hand, and by `step_s` with each poll."""
        self._clock = clock
        self._workshop.clock, self._workshop.step_s = clock, step_s
        return self

    def startup_timeout(self, seconds: float) -> Self:
        """How long loading, and an unmeasured tick, may take."""
        self._startup_timeout_s = seconds
        return self

    def scheduler(self) -> BaseScheduler:
        """The scheduler alone."""
        return SCHEDULERS[self._mode](
            max_num_seqs=self._slots, max_queue_size=self._queue, coalescing=self._coalescing
        )

    def build(self) -> Engine:
        """The engine, not started."""
        return Engine(
            build_executor=self._build,
            scheduler=self.scheduler(),
            warmup=[[request] for request in self._warmup],
            startup_timeout_s=self._startup_timeout_s,
            clock=self._clock,
        )

    def loaded(self) -> tuple[Engine, ScriptedExecutor]:
        """An engine that is ready and has no thread, so that the test ticks it, and what it runs on."""
        engine = self.build()
        engine.load()
        return engine, self._workshop.executor

    @contextmanager
    def started(self) -> Iterator[tuple[Engine, ScriptedExecutor]]:
        """An engine that is ready and has its thread, and what it runs on; closed in the end."""
        engine = self.build()
        engine.start()
        try:
            engine.wait_ready(PATIENCE_S)
            yield engine, self._workshop.executor
        finally:
            engine.close()


def tick_out(engine: Engine) -> None:
    """Tick until there is nothing left to do."""
    for _ in range(1000):
        if not engine.tick():
            return
    raise AssertionError("the engine never comes to rest")


def held(engine: Engine) -> dict[str, int]:
    """What an engine without a thread, and its runner, hold for requests."""
    counts = engine.outstanding()
    engine.tick()
    return counts.result(0)
