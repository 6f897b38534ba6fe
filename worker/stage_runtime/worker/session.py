"""One rank at work: reads commands in order, ticks between them, and answers for its copy of the model.

Step mode: each `Run` is one tick. Request mode: a `Run` plays its members to their end, and between two ticks the rank
looks at its channel. Ranks that work together agree there how far each has read, so that all of them act on a command
at the same tick; while one waits for commands, all do, at the same place in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from stage_runtime.core.control import Outstanding, Pause, StopEarly, Wake
from stage_runtime.core.errors import EngineDeadError, InternalError, RequestFailed
from stage_runtime.core.outcome import Aborted, Completed, Computed, ExecutorOutcome, Failed, failed
from stage_runtime.core.wave import Wave
from stage_runtime.ipc.codec import BadMessage, detach
from stage_runtime.ipc.messages import Answered, Ask, Command, Parcel, Run, Stop, Ticked
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender
from stage_runtime.processes.wakeup import Wakeup
from stage_runtime.runner.output import Made
from stage_runtime.worker.packer import CANNOT_PACK, Packer
from stage_runtime.worker.worker import Worker

REST_S: Final = 0.05
"""So long a rank rests with calls that are answered elsewhere and late. After that a step is over, so that the engine
may send newcomers along, and ranks that share a copy of the model meet again."""

Agree = Callable[[int], int]
"""How many commands the leader of the group has read, from how many this rank has: in every rank at the same place."""


@dataclass(slots=True)
class Deliveries:
    """What the runner has computed since the last tick, on its way to the packer."""

    made: list[Made] = field(default_factory=list)

    def __call__(self, made: Made) -> None:
        """Take what a request's pipeline has made."""
        self.made.append(made)


@dataclass(slots=True, kw_only=True)
class Session:
    """`place`: this rank's copy of the model. `speaks_for_copy`: it is the first rank of its copy."""

    rank: int
    place: int
    speaks_for_copy: bool
    plays_to_the_end: bool
    """Request mode."""
    worker: Worker
    channel: RankChannel
    sender: Sender | None
    """None where the engine is on another machine: everything travels in messages."""
    packer: Packer | None = None
    deliveries: Deliveries = field(default_factory=Deliveries)
    agree: Agree | None = None
    """Set where several ranks share a copy of the model."""
    leads: bool = True
    """The first of those."""
    wakeup: Wakeup = field(default_factory=Wakeup)
    """Rung when a call is answered from elsewhere that the last tick could not wait for."""
    _read: int = 0
    _wave_id: int = 0
    _entered: dict[str, int] = field(default_factory=dict)
    """Requests that are here, with the wave that they came with."""
    _active: tuple[str, ...] = ()
    _owes_idle: bool = False
    _stopped: bool = False

    def close(self) -> None:
        """Send what is still to be sent. The process ends next."""
        if self.packer is not None:
            self.packer.close()
        self.worker.close(with_process=True)
        if self.sender is not None:
            self.sender.close()

    def run(self) -> None:
        """Work until told to stop. Raises: what ends the group."""
        self.worker.wake_by(self.wakeup.ring)
        while not self._stopped:
            for command in self._commands():
                self._carry_out(command)
            if self.worker.paused:
                continue
            if self._active:
                self._tick()
            elif self._owes_idle:
                self._tell((), idle=True)

    def _commands(self) -> Iterable[Command]:
        """The commands to carry out now: at least one when there is nothing else to do."""
        if not (self._active or self._owes_idle) or self.worker.paused:
            yield self._next()
        elif self.agree is None:
            while self.channel.pending():
                yield self._next()
        elif self.leads:
            read = [self._next() for _ in iter(self.channel.pending, False)]
            self.agree(self._read)
            yield from read
        else:
            agreed = self.agree(self._read)
            while self._read < agreed:
                yield self._next()

    def _next(self) -> Command:
        command = self.channel.receive(None)  # ends with the engine: the kernel kills this process with it
        if command is None:
            raise EngineDeadError("the engine is gone")
        self._read += 1
        return command

    def _carry_out(self, command: Command) -> None:
        match command:
            case Run():
                self._take(command)
            case Ask():
                self._reply(self._answer(command))
            case Stop():
                self._stopped = True
            case _:
                raise InternalError(f"a {type(command).__name__} came while the rank served")

    def _take(self, run: Run) -> None:
        wave = run.wave
        self._wave_id = wave.wave_id
        if self.packer is not None:
            self.packer.drop(wave.finished_ids)
        for request_id in wave.finished_ids:
            self._entered.pop(request_id, None)
        new = tuple(e for e in wave.new if run.places[e.request.request_id] == self.place)
        self._entered.update((e.request.request_id, wave.wave_id) for e in new)
        named = tuple(i for i in wave.scheduled_ids if i in self._entered)
        if named:
            self._owes_idle = True
        self._active = named or tuple(i for i in self._active if i in self._entered)
        self.worker.submit(
            Wave(
                wave_id=wave.wave_id,
                new=new,
                cached_ids=tuple(i for i in self._active if self._entered[i] != wave.wave_id),
                finished_ids=wave.finished_ids,
            )
        )

    def _answer(self, ask: Ask) -> Answered:
        call = ask.call
        try:
            if isinstance(call, StopEarly) and call.request_id not in self._entered:
                return Answered(rank=self.rank, call_id=ask.call_id)  # another copy's
            value = self.worker.control(call)
            if isinstance(call, Wake):
                self.worker.control(Pause())  # until every rank is awake
        except EngineDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked
            return Answered(rank=self.rank, call_id=ask.call_id, error=failed("", error))
        if isinstance(call, Outstanding) and isinstance(value, dict):
            value = {**value, "parcels": len(self.packer) if self.packer is not None else 0}
        return Answered(rank=self.rank, call_id=ask.call_id, value=value)

    def _reply(self, answer: Answered) -> None:
        """Send an answer; a value that has no place in a message is a failure of the call, not of the rank."""
        try:
            self.channel.send(answer)
        except BadMessage as bad:
            self.channel.send(
                Answered(rank=self.rank, call_id=answer.call_id, error=failed("", RequestFailed(str(bad))))
            )

    def _tick(self) -> None:
        outcomes = self.worker.tick()
        if self.leads and not outcomes and self.worker.waits:
            self._rest()
        made, self.deliveries.made = self.deliveries.made, []
        ended = {o.request_id for o in outcomes if isinstance(o, Completed | Computed | Failed | Aborted)}
        self._active = tuple(i for i in self._active if i not in ended) if self.plays_to_the_end else ()
        if self.packer is not None:
            # Queued first, so that packing begins while the device's next work is still being decided.
            for one in made:
                self.packer.take(one, self._entered[one.request_id])
        self._tell(outcomes, idle=not self._active)

    def _rest(self) -> None:
        """Sleep until there is an answer or a command: nothing can move before. The other ranks wait for the leader."""
        self.channel.wait(REST_S, self.wakeup.fd)
        self.wakeup.silence()

    def _tell(self, outcomes: Iterable[ExecutorOutcome], *, idle: bool) -> None:
        self._owes_idle = not idle
        if not self.speaks_for_copy:
            return
        said: list[ExecutorOutcome] = []
        parcels: list[Parcel] = []
        for outcome in outcomes:
            light, parcel = self._light(outcome)
            said.append(light)
            if parcel is not None:
                parcels.append(parcel)
        if said or idle:
            self.channel.send(
                Ticked(
                    rank=self.rank,
                    wave_id=self._wave_id,
                    outcomes=tuple(said),
                    parcels=tuple(parcels),
                    idle=idle,
                )
            )

    def _light(self, outcome: ExecutorOutcome) -> tuple[ExecutorOutcome, Parcel | None]:
        """The outcome without its large bytes. One that can't be packed fails its request, and no other."""
        try:
            return detach(outcome, None if self.sender is None else self.sender.place)
        except Exception as error:  # noqa: BLE001 - the client gets its cause
            return failed(outcome.request_id, error, CANNOT_PACK), None
