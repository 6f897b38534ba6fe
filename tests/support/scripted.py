"""An executor without a model: it counts steps, and it fails, dies, blocks and stalls when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from stage_runtime.core.capability import Capability, ComponentCapability
from stage_runtime.core.control import Control, Outstanding, Pause, Resume, Sleep, StopEarly, Wake
from stage_runtime.core.errors import EngineDeadError, InternalError, InvalidRequest
from stage_runtime.core.outcome import Completed, Modality, Outcome, Output, Progressed, failed
from stage_runtime.core.request import Request
from stage_runtime.core.wave import Wave

PATIENCE_S = 20.0
"""How long anything in a test may wait for another thread."""

CAPABILITY = Capability(
    pipeline="scripted",
    modality=Modality.IMAGE,
    components=(ComponentCapability(name="transformer.forward", merges=True),),
    denoisers=("transformer",),
    early_stop=True,
    resumable=True,
)


class ManualClock:
    """A clock that moves when told to. Seconds."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


class Gate:
    """Holds a thread that passes through it until the test lets it go."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._opened = threading.Event()

    def wait_arrival(self) -> None:
        """Wait until the thread stands at the gate."""
        assert self._arrived.wait(PATIENCE_S), "nobody came to the gate"

    def open(self) -> None:
        """Let the thread go, and everyone after it."""
        self._opened.set()

    def pass_through(self) -> None:
        """Called by the thread that is held."""
        self._arrived.set()
        assert self._opened.wait(PATIENCE_S), "the gate was never opened"


class ScriptedExecutor:
    """Each poll advances every scheduled request by one step; a request is done after its own number of steps.

    What the engine did can be read from `waves`, `held`, `calls` and `closed`. Breaking the protocol raises, as in
    any executor: an unknown id, KV fields, use from another thread, use after its death.
    """

    def __init__(
        self, *, clock: ManualClock | None = None, step_s: float = 0.0, capability: Capability = CAPABILITY
    ) -> None:
        """`step_s`: how far a poll moves `clock`."""
        self.waves: list[Wave] = []
        self.held: dict[str, int] = {}
        """Steps done by each request that the runner would keep state for."""
        self.steps: dict[str, list[int]] = {}
        """Steps that each request was seen to do, kept after its end."""
        self.calls: list[Control] = []
        self.deadlines: list[float | None] = []
        """Until when each poll was to wait."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while a control call is carried out."""
        self.closed = 0
        self._capability = capability
        self._clock = clock
        self._step_s = step_s
        self._requests: dict[str, Request] = {}
        self._running: tuple[str, ...] = ()
        self._ended: set[str] = set()
        self._failures: dict[str, tuple[int, Exception]] = {}
        self._stalled: set[str] = set()
        self._early: set[str] = set()
        self._death: BaseException | None = None
        self._gate: Gate | None = None
        self._lateness: list[Outcome] = []
        self._thread = threading.get_ident()
        self._paused = False
        self._woken = threading.Event()
        self._on_death: list[Callable[[EngineDeadError], None]] = []

    # What a test tells it

    def fail(self, request_id: str, error: Exception, *, at_step: int = 1) -> None:
        """Fail this request instead of its step `at_step`."""
        self._failures[request_id] = (at_step, error)

    def stall(self, request_id: str) -> None:
        """This request gives no outcome until `unstall`."""
        self._stalled.add(request_id)

    def unstall(self, request_id: str) -> None:
        """This request moves again."""
        self._stalled.discard(request_id)

    def die(self, error: BaseException | None = None) -> None:
        """Raise `error` out of the next poll and of everything after it."""
        self._death = error or EngineDeadError("rank 0 was killed")

    def die_unpolled(self, error: EngineDeadError) -> None:
        """Die, and tell whoever wants to know, as a rank does that is killed while nobody polls."""
        self._death = error
        for callback in self._on_death:
            callback(error)

    def block(self) -> Gate:
        """Hold the next poll at a gate."""
        gate = Gate()
        self.hold(gate)
        return gate

    def hold(self, gate: Gate) -> None:
        """Hold the next poll at this gate."""
        self._gate = gate

    def say_late(self, outcome: Outcome) -> None:
        """Give this outcome with the next poll, whoever it belongs to."""
        self._lateness.append(outcome)

    # The protocol

    @property
    def capability(self) -> Capability:
        """What the pretended model can do."""
        return self._capability

    def submit(self, wave: Wave) -> None:
        """Forget, take in, get ready."""
        self._check_use()
        self.waves.append(wave)
        wave.refuse_kv()
        for request_id in wave.finished_ids:
            if self.held.pop(request_id, None) is None:
                raise InternalError(f"{request_id} is to be forgotten, but isn't known")
            self._requests.pop(request_id)
            self._ended.discard(request_id)
            self._early.discard(request_id)
        for new in wave.new:
            request_id = new.request.request_id
            if request_id in self.held:
                raise InternalError(f"{request_id} is new, but is known")
            self.held[request_id] = 0
            self.steps[request_id] = []
            self._requests[request_id] = new.request
        if strangers := set(wave.scheduled_ids) - set(self.held):
            raise InternalError(f"scheduled, but not known: {sorted(strangers)}")
        self._running = wave.scheduled_ids

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick."""
        self._check_use()
        self.deadlines.append(deadline_s)
        if self._gate is not None:
            gate, self._gate = self._gate, None
            gate.pass_through()
            self._check_use()
        if self._paused:
            self._woken.wait(PATIENCE_S)
            self._woken.clear()
            return []
        if self._clock is not None:
            self._clock.advance(self._step_s)
        outcomes, self._lateness = self._lateness, []
        for request_id in self._running:
            if request_id not in self._stalled and request_id not in self._ended:
                outcomes.extend(self._step(self._requests[request_id]))
        return outcomes

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop working on these."""
        self._ended.update(request_id for request_id in request_ids if request_id in self.held)

    def control(self, call: Control) -> object:
        """StopEarly ends a request at its next poll; Outstanding counts what is held."""
        self._check_use()
        self.calls.append(call)
        self.meanwhile()
        match call:
            case StopEarly(request_id=request_id):
                if request_id not in self.held or request_id in self._ended:
                    raise InvalidRequest(f"request {request_id} isn't running", "request_id")
                self._early.add(request_id)
                return None
            case Outstanding():
                return {"scripts": len(self.held)}
            case Pause() | Sleep():
                self._paused = True
            case Resume() | Wake():
                self._paused = False
        return None

    def wake(self) -> None:
        """End the wait of a poll."""
        self._woken.set()

    def when_dead(self, callback: Callable[[EngineDeadError], None]) -> None:
        """Tell of `die_unpolled`."""
        self._on_death.append(callback)

    def give_up(self, death: EngineDeadError) -> None:
        """Nothing here could hang."""

    def health(self) -> None:
        """Raises what killed it."""
        if isinstance(self._death, EngineDeadError):
            raise self._death

    def close(self) -> None:
        """Count the closings."""
        self.closed += 1
        self.held.clear()

    # How

    def _step(self, request: Request) -> list[Outcome]:
        request_id, step = request.request_id, self.held[request.request_id] + 1
        if (failure := self._failures.get(request_id)) is not None and failure[0] == step:
            self._ended.add(request_id)
            return [failed(request_id, failure[1])]
        if request_id in self._early:
            self._ended.add(request_id)
            return [Completed(request_id, pixel(request.seed), self.held[request_id])]
        self.held[request_id] = step
        self.steps[request_id].append(step)
        if step == request.steps:
            self._ended.add(request_id)
            return [Progressed(request_id, step, step), Completed(request_id, pixel(request.seed), step)]
        if step in request.preview_steps:
            index = request.preview_steps.index(step)
            return [Progressed(request_id, step, request.steps, pixel(step), index)]
        return [Progressed(request_id, step, request.steps)]

    def _check_use(self) -> None:
        if self._death is not None:
            raise self._death
        if self.closed:
            raise InternalError("used after close")
        if threading.get_ident() != self._thread:
            raise InternalError("used from a thread that did not build it")


def pixel(value: int) -> Output:
    """A picture of one pixel, so that a test can tell whose it is."""
    return Output(modality=Modality.IMAGE, data=bytes([value % 256] * 3), shape=(1, 1, 3), dtype="uint8")


class Workshop:
    """A `build_executor`: builds in whichever thread calls it, and shows the test what it built."""

    def __init__(
        self,
        prepare: Callable[[ScriptedExecutor], None] | None = None,
        *,
        clock: ManualClock | None = None,
        step_s: float = 0.0,
    ) -> None:
        """`prepare` tells a new executor what to do, before anything uses it."""
        self.built: list[ScriptedExecutor] = []
        self.prepare = prepare
        self.clock = clock
        self.step_s = step_s

    def __call__(self) -> ScriptedExecutor:
        executor = ScriptedExecutor(clock=self.clock, step_s=self.step_s)
        if self.prepare is not None:
            self.prepare(executor)
        self.built.append(executor)
        return executor

    @property
    def executor(self) -> ScriptedExecutor:
        """The latest one."""
        return self.built[-1]
