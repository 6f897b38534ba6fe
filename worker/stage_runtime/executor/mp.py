"""One process per rank: waves and control calls go to all ranks in one order, outcomes come back by request id.

The engine's loop thread is the only user of the sockets. A rank that ends, says what it can't, or lets a deadline
pass is the end of the group: it fails closed, and nothing is served by it again. Loads no torch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from threading import Event, Lock, RLock
from typing import Final

from stage_api.config import StageConfig
from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control, Outstanding, Resume, StopEarly, patience_s
from stage_runtime.core.errors import EngineDeadError, EngineHung, InvalidRequest, RendezvousTimeout
from stage_runtime.core.outcome import Computed, ExecutorOutcome
from stage_runtime.core.starting import Tell, untold
from stage_runtime.core.wave import Wave
from stage_runtime.executor.answers import combined, unanswered
from stage_runtime.executor.copy_watch import CopyWatch
from stage_runtime.executor.death import Deaths, hang_of
from stage_runtime.executor.dispatch import Dispatch
from stage_runtime.executor.group_sleep import GroupSleep
from stage_runtime.executor.handshake import Handshake
from stage_runtime.executor.launch import Launch, rank_environ
from stage_runtime.executor.ledger import BadReply, Ledger, ReplyContent
from stage_runtime.executor.pods import listening_channel, spanning_life
from stage_runtime.executor.unpack import drop, unpacked
from stage_runtime.ipc import channel as wire
from stage_runtime.ipc import messages
from stage_runtime.ipc.shm import Receiver
from stage_runtime.ipc.sockets import seconds_left
from stage_runtime.processes.children import Children

CLOSE_S: Final = 1.0  # for a rank to end by itself when it is asked
NOTICE_S: Final = 0.1  # for the loop thread to notice a death by itself
LISTEN_S: Final = 0.002  # between two looks for last words
CAUSE_S: Final = 0.1  # for the rank to end that others ended of

log = logging.getLogger(__name__)


class MpExecutor:
    """Implements `executor.base.Executor` with a process per rank. Those of other pods are started by their agents."""

    def __init__(
        self,
        config: StageConfig,
        *,
        epoch: int = 0,
        environ: Mapping[str, str] = os.environ,
        open_channel: Callable[[], wire.EngineChannel] = wire.EngineChannel,
        patience_s: Callable[[Control], float] = patience_s,
        tell: Tell = untold,
    ) -> None:
        """Start the ranks and wait until all are ready, for the startup timeout.

        `patience_s`: how long ranks that look at their channel may take to answer a call. `tell` gets what rank 0 is
        doing meanwhile.
        Raises: what a rank couldn't start for (SpecError, ModelError, OutOfDeviceMemory …); RendezvousTimeout that
        names the ranks that are missing; EngineDeadError for one that ended.
        """
        self._topology = config.topology()
        self._config, self._epoch = config, epoch
        self._startup_s = float(config.startup.timeout_seconds)
        self._dispatch = Dispatch(self._topology.degrees["data"])
        self._ledger = Ledger()
        self._deaths = Deaths()
        self._children = Children()
        self._backlog: list[ExecutorOutcome] = []
        self._answers: dict[int, messages.Answered] = {}
        self._group_sleep, self._copy_watch = GroupSleep(self._ask), CopyWatch()
        self._last_call = self._last_wave = 0
        self._allowance_s = self._startup_s
        """How long a rank may be in a tick before it looks at its channel, as far as is known."""
        self._woken = self._closed = False
        self._death: EngineDeadError | None = None
        self._dying, self._noticed = Lock(), Event()
        self._talk = RLock()
        """Held while the channel is used: it is the loop thread's, but for last words that come while that rests."""
        self._on_death: list[Callable[[EngineDeadError], None]] = []
        self._receiver = Receiver()
        self._life = life = spanning_life(self._topology, epoch)
        self._channel = listening_channel(environ, life, self._on_gone) if life else open_channel()
        self._patience_s = patience_s
        try:
            self._capability = self._open(environ, tell)
        except BaseException:
            self.close()
            raise

    # The protocol

    @property
    def capability(self) -> Capability:
        return self._capability

    @property
    def pids(self) -> dict[int, int]:
        return self._children.pids

    def submit(self, wave: Wave) -> None:
        """Send each idle copy of the model what it is to run, and all ranks what they are to forget."""
        self.health()
        if wave.finished_ids:
            drop(self._ledger.forget(wave.finished_ids), self._receiver)
        run = self._dispatch.plan(wave)
        if run is None:
            return
        if run.places:
            self._allowance_s = self._startup_s
        self._last_wave = wave.wave_id
        self._ledger.enter(run.places, wave.wave_id)
        self._send(run)

    def poll(self, deadline_s: float | None) -> Sequence[ExecutorOutcome]:
        """What the ranks have said, waiting for the first word until `deadline_s` on the monotonic clock."""
        outcomes, self._backlog = self._backlog, []
        woken, self._woken = self._woken, False
        if deadline_s is not None:
            self._allowance_s = max(0.0, deadline_s - time.monotonic())
        self._copy_watch.allow(None if deadline_s is None else self._allowance_s)
        self._copy_watch.busy(self._dispatch.busy, time.monotonic())
        if not outcomes:
            self._receive(0.0 if woken else seconds_left(deadline_s))
            outcomes, self._backlog = self._backlog, []
        if not outcomes:
            self.health()
        if (hung := self._copy_watch.hung(time.monotonic())) is not None:
            copy, silent_s = hung
            stopped = self._children.frozen() | self._deaths.frozen
            raise self._die(hang_of(self._topology, copy, silent_s, stopped))
        return outcomes

    def abort(self, request_ids: Sequence[str]) -> None:
        self._dispatch.forget(request_ids)
        drop(self._ledger.forget(request_ids), self._receiver)
        self._send(
            messages.Run(wave=Wave(wave_id=self._last_wave, finished_ids=tuple(request_ids)), places={})
        )

    def control(self, call: Control) -> object:
        """Ask every rank, and wait for all answers. Outcomes that come meanwhile are kept for the next poll.

        Raises: EngineHung when a rank doesn't answer in time.
        """
        self.health()
        if isinstance(call, StopEarly) and self._dispatch.place_of(call.request_id) is None:
            raise InvalidRequest(f"request {call.request_id} is not running")
        try:
            answer = self._group_sleep.carry_out(call)
        except EngineDeadError as death:
            raise self._die(death) from None
        if isinstance(call, Outstanding) and isinstance(answer, dict):
            return {**answer, "ledger": len(self._ledger), "placed": self._dispatch.placed}
        return answer

    def _ask(self, call: Control) -> object:
        self._last_call += 1
        self._answers = {}
        self._send(messages.Ask(self._last_call, call))
        tick_s = self._allowance_s if self._dispatch.busy else 0.0
        until_s = time.monotonic() + self._patience_s(call) + tick_s
        while len(self._answers) < self._topology.world_size:
            if time.monotonic() > until_s:
                raise self._die(unanswered(call, self._answers, self._topology.world_size))
            if not self._receive(seconds_left(until_s)):
                self._woken = True  # for the poll that comes next
                self.health()
        if isinstance(call, Resume):
            self._allowance_s = self._startup_s
        return combined(call, self._answers)

    def wake(self) -> None:
        self._channel.wake()

    def when_dead(self, callback: Callable[[EngineDeadError], None]) -> None:
        with self._dying:
            if self._death is None:
                self._on_death.append(callback)
                return
        callback(self._death)

    def give_up(self, death: EngineDeadError) -> None:
        """Kill the ranks: they may hang, and hear nothing."""
        self._die(death)

    def health(self) -> None:
        if self._death is None and not self._closed and (death := self._cause()) is not None:
            self._die(death)
        if self._death is not None:
            raise self._death
        if self._closed:
            raise EngineDeadError("the executor is closed")

    def close(self) -> None:
        """End the ranks, orderly if they live, and free sockets and shared memory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # A group that is dead may hang in a collective: it isn't asked.
        self._children.stop(self._ask_to_stop, patience_s=CLOSE_S if self._death is None else 0.0)
        self._receiver.close()
        self._channel.close()

    # Start

    def _open(self, environ: Mapping[str, str], tell: Tell) -> Capability:
        until_s = time.monotonic() + self._startup_s
        topology = self._topology
        handshake = Handshake(
            messages.Setup(config=self._config.encode().encode(), epoch=self._epoch),
            digest=topology.digest,
            world_size=topology.world_size,
            tell=tell,
        )
        ranks = topology.ranks_of(0)
        address = self._channel.address
        launch = Launch(engine=address, config=self._config, epoch=self._epoch, life=self._life)
        self._start(launch, ranks, rank_environ(environ, len(ranks)))
        for pidfd in self._children.sentinels:
            self._channel.watch(pidfd)
        while not handshake.complete:
            if time.monotonic() > until_s:
                raise RendezvousTimeout(f"after {self._startup_s:.0f} s {handshake.missing}")
            for reply in self._channel.receive(seconds_left(until_s)):
                for command in self._greeted(handshake, reply):
                    self._send(command)
            self.health()
        self._channel.seal()
        self._deaths.served = True
        self._children.watch(lambda _rank, _code: self._notice(), self._on_stopped)
        return handshake.capability

    def _start(self, launch: Launch, ranks: Sequence[int], environ: Mapping[str, str]) -> None:
        with ExitStack() as stack:
            file_pipes = {rank: stack.enter_context(closing(self._receiver.file_pipe())) for rank in ranks}
            numbers = {rank: file_pipe.number for rank, file_pipe in file_pipes.items()}
            commands = {rank: launch.command(rank, number) for rank, number in numbers.items()}
            self._children.start(commands, environ, numbers)

    def _greeted(self, handshake: Handshake, reply: messages.Reply | wire.BadReply) -> list[messages.Command]:
        if isinstance(reply, wire.BadReply):
            raise reply.death
        if isinstance(reply, messages.Dying | messages.Ended | messages.Frozen):
            self._deaths.said(reply)
            return []
        return [] if isinstance(reply, messages.Attending) else handshake.take(reply)

    # Talk

    def _send(self, command: messages.Command) -> None:
        try:
            with self._talk:
                self._channel.send(range(self._topology.world_size), command)
        except wire.PeerGone as gone:
            self.health()  # its exit says more
            if self._topology.pod_of(gone.rank):
                self._deaths.lost(gone.rank)
                self.health()
            raise self._die(EngineDeadError(f"rank {gone.rank} can't be reached", rank=gone.rank)) from gone

    def _receive(self, timeout_s: float | None) -> bool:
        """Take in what the ranks say. False when nobody said anything."""
        with self._talk:
            replies = self._channel.receive(timeout_s)
        try:
            for reply in replies:
                self._take(reply)
        except BadReply as bad:
            raise self._die(EngineDeadError(str(bad))) from bad
        return bool(replies)

    def _take(self, reply: messages.Reply | wire.BadReply) -> None:
        match reply:
            case messages.Ticked():
                self._ticked(reply)
            case messages.OutputReady():
                self._deliver(self._ledger.ready(reply))
            case messages.Answered(call_id=call_id, rank=rank):
                if call_id == self._last_call:
                    self._answers[rank] = reply
            case messages.Dying() | messages.Ended() | messages.Frozen():
                self._deaths.said(reply)
            case wire.BadReply():
                raise self._die(reply.death)
            case _:
                raise BadReply(f"rank {reply.rank} sent a {type(reply).__name__} while it served")

    def _ticked(self, reply: messages.Ticked) -> None:
        copy = self._topology.coordinates[reply.rank].data
        if reply.rank != self._topology.data_primaries[copy]:
            raise BadReply(f"rank {reply.rank} answers for its copy of the model, but isn't its first")
        content = self._ledger.ticked(reply)
        self._copy_watch.heard(copy, time.monotonic())
        if reply.idle:
            self._dispatch.idle(copy)
        self._deliver(content)

    def _deliver(self, content: ReplyContent) -> None:
        drop(content.dropped, self._receiver)
        for delivery in content.deliveries:
            if isinstance(delivery.outcome, Computed):
                self._dispatch.computed(delivery.outcome.request_id)
            self._backlog.append(unpacked(delivery, self._receiver))

    # Death

    def _on_gone(self, rank: int) -> None:
        """From the guard's thread: a connection to another pod ended. What the pod has still said tells more."""
        if not self._noticed.wait(NOTICE_S):
            self._deaths.lost(rank)
            self._notice()

    def _on_stopped(self, rank: int) -> None:
        """From the thread that watches: a rank hears nothing, also while nothing runs."""
        self._die(EngineHung(f"rank {rank} is stopped", rank=rank))
        self._channel.wake()

    def _notice(self) -> None:
        """Die of what has ended. The loop thread does it while it polls, and knows the ranks' last words."""
        self._channel.wake()
        if not self._noticed.wait(NOTICE_S):
            with suppress(EngineDeadError):
                self.health()

    def _cause(self) -> EngineDeadError | None:
        """What has killed the group, if anything has."""
        for look in (1, 2):
            for rank, code in self._children.ended().items():
                self._deaths.exited(rank, code)
            if look == 2 or not self._deaths.may_be_another:
                break
            self._hear_on()
        return self._deaths.cause()

    def _hear_on(self) -> None:
        """Give the rank that others ended of time to end, and what was said last time to be heard."""
        until_s = time.monotonic() + CAUSE_S
        self._children.wait(CAUSE_S)
        if not self._talk.acquire(blocking=False):
            return  # the loop thread listens, and hears it all
        try:
            while not self._closed:
                for reply in self._channel.receive(0.0):
                    if isinstance(reply, messages.Dying | messages.Ended | messages.Frozen):
                        self._deaths.said(reply)
                all_heard = self._topology.pods == 1 and not self._deaths.wordless
                if all_heard or time.monotonic() >= until_s:
                    return
                self._noticed.wait(LISTEN_S)
        finally:
            self._talk.release()

    def _die(self, death: EngineDeadError) -> EngineDeadError:
        """Refuse everything from now on. Only the first cause counts; returns it."""
        with self._dying:
            if self._death is not None:
                return self._death
            self._death = death
            callbacks, self._on_death = self._on_death, []
        self._noticed.set()
        self._children.kill()
        for callback in callbacks:
            callback(death)
        return death

    def _ask_to_stop(self) -> None:
        with suppress(Exception):  # those that hear nothing are killed
            self._channel.send(range(self._topology.world_size), messages.Stop())
