"""`omnistage run`: one stage on this machine, by the command that a pod runs, as a child.

Signals are passed on. A child that ends by itself gets another life by the stage's failure policy, as on a cluster;
in the end its exit code becomes this process's. Neither outlives the other.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from stage_api import names
from stage_api.config import StageConfig
from stage_api.failure import Evidence, FailurePolicySpec, History, Hold, Restart, decide
from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.local.control_socket import control_socket
from stage_runtime.local.handover import Handover
from stage_runtime.local.manifest import local_config, local_stage
from stage_runtime.local.other_pods import OtherPods
from stage_runtime.local.parent_link import ParentEnd
from stage_runtime.local.pod import start_pod
from stage_runtime.local.watch import Watch
from stage_runtime.processes.child import STOPS, Child, how_it_ended

LOCAL_HOST: Final = "127.0.0.1"
_BY_SIGNAL: Final = 128  # added to its number, as shells do


def run(manifest: Path, *, host: str = LOCAL_HOST, port: int | None = None) -> int:
    """Serve the manifest's stage until it is told to stop or must not start again; the exit code.

    Only for the main thread. Raises: SpecError for a manifest that is wrong or that one machine can't run.
    """
    stage = local_stage(manifest)
    config = local_config(stage)
    with ExitStack() as held:
        handover, others = held.enter_context(Handover(config)), held.enter_context(OtherPods(config))
        control = held.enter_context(control_socket(config.name)) if config.control.enabled else None
        policy = stage.spec.failure_policy
        return _Supervisor(config, policy, handover, others, (host, port), control).to_its_end()


@dataclass(frozen=True, slots=True)
class _Ended:
    """One life, in the past."""

    status: int
    """As subprocess has it: the exit code, or a signal's number below zero."""
    report: TerminationReport | None
    at_s: float
    ready_at_s: float | None

    @property
    def code(self) -> int:
        """The exit code, as shells have it."""
        return self.status if self.status >= 0 else _BY_SIGNAL - self.status

    @property
    def ready_for_s(self) -> float | None:
        return None if self.ready_at_s is None else self.at_s - self.ready_at_s


class _Supervisor:
    """One life after another."""

    def __init__(
        self,
        config: StageConfig,
        policy: FailurePolicySpec,
        handover: Handover,
        others: OtherPods,
        listen: tuple[str, int | None],
        control: Path | None = None,
    ) -> None:
        """`control`: path of the socket for control calls; None for none."""
        self._config = config
        self._policy = policy
        self._handover = handover
        self._others = others
        self._host, self._port = listen
        self._control = {} if control is None else {names.ENV_CONTROL_SOCKET: str(control)}
        self._last_start: dict[str, str] = {}
        self._child: Child | None = None
        self._asked_to_stop = False
        self._interrupted = False

    def to_its_end(self) -> int:
        """Start the child and wait for it, as often as the policy says."""
        history = History()
        with self._signals():
            while True:
                epoch = history.restarts
                ended = self._live(epoch)
                if ended is None:
                    return ExitCode.DRAINED
                self._tell_end(ended.status, ended.report)
                if self._asked_to_stop:
                    return ended.code
                decision = decide(
                    self._policy,
                    history,
                    Evidence.of_exit(epoch, ended.code, ended.report),
                    now_s=ended.at_s,
                    ready_for_s=ended.ready_for_s,
                    jitter=random.uniform(-1, 1),
                )
                history = decision.history
                match decision.action:
                    case Hold(reason):
                        self._say(f"is not started again: {reason.meaning}")
                        return ended.code
                    case Restart(at_s):
                        self._wait_until(at_s)

    def _live(self, epoch: int) -> _Ended | None:
        """One life from start to end. None when there was none, since this process was asked to stop."""
        with ParentEnd() as parent_link:
            watch, began_s = Watch(parent_link, self._config, again=epoch > 0), time.monotonic()
            with (
                _held_back()
            ):  # until the child can be told, and in the child until it can listen: none is lost
                if self._asked_to_stop:
                    return None
                environ = self._environ(epoch)
                child = self._child = start_pod(
                    self._handover, parent_link, environ, host=self._host, port=self._port
                )
                self._others.start(environ, child)
                watch.start()  # its thread holds them back too, so that they come to this one
            status, report = child.wait() or 0, self._handover.report()
            at_s = time.monotonic()
            failure = self._others.end()
            if failure is not None and status == 0 and not self._asked_to_stop:
                # It was ended, since another pod was gone.
                status, report = failure.status, failure.report
            watch.end()
            child.close()
        if watch.ready_at_s is not None:
            self._last_start = {names.ENV_LAST_START: f"{watch.ready_at_s - began_s:.1f}"}
        if watch.port is not None:
            self._port = watch.port  # also where any free one was asked for: clients know it now
        return _Ended(status, report, at_s, watch.ready_at_s)

    def _environ(self, epoch: int) -> dict[str, str]:
        return {
            **os.environ,
            **self._others.environ(),
            **self._control,
            **self._last_start,
            names.ENV_STAGE: self._config.name,
            names.ENV_EPOCH: str(epoch),
        }

    def _wait_until(self, at_s: float) -> None:
        """Wait for the next life. Returns early when this process is asked to stop."""
        wait_s = max(0.0, at_s - time.monotonic())
        self._say("starts again " + (f"in {wait_s:.0f} s" if wait_s >= 0.5 else "at once"))
        with _held_back():
            if not self._asked_to_stop and signal.sigtimedwait(_heeded(), wait_s) is not None:
                self._asked_to_stop = True

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._pass_on) for number in _heeded()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._asked_to_stop = True
        if self._child is None:
            return
        if number == signal.SIGINT and self._interrupted:
            self._child.send(signal.SIGKILL)
            return
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._child.send(signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number))

    def _tell_end(self, status: int, report: TerminationReport | None) -> None:
        """A life's last words for people."""
        if status < 0:
            self._say(how_it_ended(status))
        elif status != ExitCode.DRAINED:
            why = "it left no report" if report is None else report.message
            rank = "" if report is None or report.rank is None else f"rank {report.rank}"
            self._say(f"ended with {status}: {why}" + (f" ({rank})" if rank not in why else ""))
        elif not self._asked_to_stop:
            self._say("ended, though nobody asked it to")

    def _say(self, text: str) -> None:
        print(f"omnistage: {self._config.name} {text}", file=sys.stderr, flush=True)


def _heeded() -> tuple[signal.Signals, ...]:
    """The signals that mean something here: not those that whoever started this process ignores, as nohup does."""
    return tuple(number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN)


@contextmanager
def _held_back() -> Iterator[None]:
    """Signals come after it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
