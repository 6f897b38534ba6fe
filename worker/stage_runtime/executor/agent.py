"""The rank agent: starts the ranks of a pod that isn't its replica's first, and ends with them.

It dials the first pod, so that the engine there learns how a rank ended, and so that it learns of the engine's end
while its ranks are stuck in a collective. The ranks dial the engine too, and say there what they have to say.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Event
from typing import Final

from stage_api.config import StageConfig
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError
from stage_runtime.executor.death import Deaths
from stage_runtime.executor.launch import Launch, rank_environ
from stage_runtime.executor.pods import MeetingPoint, meeting_point, spanning_life
from stage_runtime.ipc.keys import load_client
from stage_runtime.ipc.messages import Attending, Ended, Frozen
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.processes.children import Children
from stage_runtime.processes.wakeup import Wakeup

LANE: Final = "agent"
ORDERLY_S: Final = 5.0  # for ranks to end by themselves once the first of them has, or the engine is gone
TERMINATE_S: Final = 2.0  # for ranks to end that are told to
LOOK_S: Final = 2.0  # between two looks whether a rank is frozen; less than it takes to miss its heartbeats
NOTICE_S: Final = 0.3  # for the engine's end to be noticed, of which ranks have ended

_ORDERLY: Final = frozenset({ExitCode.DRAINED, ExitCode.RANK_DIED})
"""With these a rank ends whose engine is gone: told to stop, or not any more."""

log = logging.getLogger(__name__)


class Agent:
    """The ranks of one pod. `run` belongs to one thread, which must live as long as they do; the rest to any."""

    def __init__(
        self, config: StageConfig, *, pod: int, epoch: int, environ: Mapping[str, str] = os.environ
    ) -> None:
        """`pod` is this pod's index in its replica, from 1. Raises: SpecError for what the environment lacks."""
        self._config = config
        self._ranks = config.topology().ranks_of(pod)
        self._epoch, self._life = epoch, spanning_life(config.topology(), epoch)
        self._environ = environ
        self._point: MeetingPoint = meeting_point(environ)
        self._keys = load_client(self._point.keys)
        self._children = Children()
        self._deaths = Deaths()
        self._wakeup = Wakeup()
        self._stop_by_s: float | None = None
        """On the monotonic clock; set once the pod is told to stop."""
        self._attends = False
        self.ended = Event()
        """Set once `run` is through."""

    @property
    def attends(self) -> bool:
        """The engine was reached, and the ranks live as far as is known."""
        return self._attends

    def stop(self, patience_s: float) -> None:
        """Let the ranks end as the engine tells them, and end them after `patience_s`."""
        self._stop_by_s = time.monotonic() + patience_s
        self._wakeup.ring()

    def run(self) -> None:
        """Start the ranks and wait until they have ended as the engine told them.

        Raises: what they or the engine died of; RendezvousTimeout when there is no engine within the startup timeout.
        """
        try:
            with_engine = self._dial()
            try:
                self._start(with_engine)
                self._until_the_end(with_engine)
            finally:
                self._attends = False
                self._children.stop(lambda: None, patience_s=0.0)
                with_engine.close()
        finally:
            self.ended.set()

    def _dial(self) -> RankChannel:
        startup_s = float(self._config.startup.timeout_seconds)
        log.info("looks for the engine", extra={"address": self._point.address, "patience_s": startup_s})
        return RankChannel(
            self._point.address,
            self._ranks[0],
            keys=self._keys,
            life=self._life,
            lane=LANE,
            patience_s=startup_s,
        )

    def _start(self, engine: RankChannel) -> None:
        engine.send(Attending(self._ranks[0]))
        launch = Launch(
            engine=self._point.address,
            config=self._config,
            epoch=self._epoch,
            life=self._life,
            keys=self._point.keys,
        )
        self._children.start(
            {rank: launch.command(rank) for rank in self._ranks},
            rank_environ(self._environ, len(self._ranks)),
        )
        for pidfd in self._children.sentinels:
            engine.watch(pidfd)
        engine.watch(self._wakeup.fd)
        self._attends = True
        log.info("ranks started", extra={"ranks": list(self._ranks)})

    def _until_the_end(self, engine: RankChannel) -> None:
        frozen: set[int] = set()
        while not (self._children.ended() or engine.gone):
            left_s = LOOK_S if self._stop_by_s is None else min(LOOK_S, self._stop_by_s - time.monotonic())
            if left_s <= 0.0:
                log.warning("the engine did not stop the ranks in time")
                self._children.stop(lambda: None, patience_s=TERMINATE_S)
                return
            command = engine.receive(left_s)
            if command is not None:
                raise InternalError(f"a {type(command).__name__} came to an agent")
            self._wakeup.silence()
            before, frozen = frozen, self._children.frozen()
            for rank in before ^ frozen:
                engine.send(Frozen(rank=self._ranks[0], who=rank, is_frozen=rank in frozen))
        self._account_for(engine, frozen)

    def _account_for(self, engine: RankChannel, frozen: set[int]) -> None:
        """One rank has ended, or the engine has. Raises: what for, unless all end as they are told."""
        if not any(self._children.ended().values()) and not frozen:
            self._children.wait(ORDERLY_S)
        codes = self._children.ended()
        self._tell(engine, codes)
        self._children.kill()
        self._children.wait(TERMINATE_S)
        if len(codes) == len(self._ranks) and not any(codes.values()):
            return
        if _ORDERLY.issuperset(codes.values()):
            # When the pods of a replica go down together, the first may be gone before its ranks have heard of it.
            if self._stop_by_s is not None:
                return
            if frozen:
                rank = min(frozen)
                raise EngineHung(f"rank {rank} is stopped, and the engine is gone", rank=rank)
            if self._is_gone(engine):
                raise EngineDeadError("the engine, in the replica's first pod, is gone")
        raise self._deaths.cause() or InternalError("ranks ended for no cause")

    def _tell(self, engine: RankChannel, codes: Mapping[int, int]) -> None:
        for rank, code in codes.items():
            self._deaths.exited(rank, code)
            with suppress(Exception):  # the engine may be gone; what it can't hear it has noticed
                engine.send(Ended(rank=self._ranks[0], who=rank, code=code))

    def _is_gone(self, engine: RankChannel) -> bool:
        until_s = time.monotonic() + NOTICE_S
        while not engine.gone and (left_s := until_s - time.monotonic()) > 0.0:
            engine.receive(left_s)
        return engine.gone
