"""The processes of the local ranks: starts them, notices at once when one ends, and ends them all in bounded time.

A rank is started as a program, not by `multiprocessing`: nothing of the parent is imported or inherited, and there is
no helper process to leak. Each asks the kernel to be killed when its parent dies. NB: the kernel means the parent's
*thread*, so the thread that starts ranks must live as long as they do.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Final

from stage_runtime.ipc.owner import is_frozen

KILLED_S: Final = 10.0  # for the kernel to take a killed process's memory back

log = logging.getLogger(__name__)

OnExit = Callable[[int, int], None]
"""(rank, return code: negative is a signal)."""


@dataclass(slots=True)
class _Rank:
    process: subprocess.Popen[bytes]
    pidfd: int


class Supervisor:
    """Owns the processes. `start` and `stop` belong to one thread, the rest to any."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._watcher: Thread | None = None
        self._stopping = False

    def start(
        self,
        commands: Mapping[int, Sequence[str]],
        environ: Mapping[str, str],
        keep: Mapping[int, int] | None = None,
    ) -> None:
        """Start a process for each rank. Raises: OSError; those that were started are killed then.

        `keep`: a file descriptor that a rank is to inherit, by rank. The others get none.
        """
        try:
            for rank, command in commands.items():
                process = subprocess.Popen(
                    command,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    pass_fds=() if keep is None else (keep[rank],),
                )
                self._ranks[rank] = _Rank(process, os.pidfd_open(process.pid))
        except OSError:
            self.stop(lambda: None, patience_s=0.0)
            raise

    def watch(self, on_exit: OnExit) -> None:
        """Call `on_exit` from a thread of its own as soon as a rank ends, once for each, until `stop`."""
        self._watcher = Thread(target=self._watch, args=(on_exit,), name="rank-sentinel", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: one.process.pid for rank, one in self._ranks.items()}

    @property
    def sentinels(self) -> list[int]:
        """File descriptors that become readable when a rank ends."""
        return [one.pidfd for one in self._ranks.values() if one.pidfd >= 0]

    def ended(self) -> dict[int, int]:
        """Return codes of the ranks that have ended."""
        codes = {rank: one.process.poll() for rank, one in self._ranks.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def frozen(self) -> set[int]:
        """The ranks that are stopped by a signal or a debugger: they live, and do nothing."""
        return {rank for rank in self._left() if is_frozen(self._ranks[rank].process.pid)}

    def stop(self, ask: Callable[[], None], *, patience_s: float) -> None:
        """End all: ask, wait for `patience_s`, terminate, wait half as long, kill. 0 kills at once. Idempotent.

        A stopped process (SIGSTOP) hears neither asking nor SIGTERM; SIGKILL ends it too.
        """
        self._stopping = True
        if patience_s > 0 and self._left():
            ask()
            self.wait(patience_s)
            for rank in self._left():
                log.warning("rank did not end when asked", extra={"rank": rank})
                self._ranks[rank].process.terminate()
            self.wait(patience_s / 2)
        self.kill()
        self.wait(KILLED_S)
        if self._watcher is not None:
            self._watcher.join(10.0)
        for one in self._ranks.values():
            one.process.poll()  # leaves no zombie
            if one.pidfd >= 0:
                os.close(one.pidfd)
                one.pidfd = -1

    def kill(self) -> None:
        """SIGKILL to all that live, from any thread: what hangs in a device's driver can't be asked."""
        for rank in self._left():
            self._ranks[rank].process.kill()

    def wait(self, patience_s: float) -> None:
        """Until all have ended, at most so long."""
        until_s = time.monotonic() + patience_s
        for rank in self._left():
            poll = select.poll()
            poll.register(self._ranks[rank].pidfd, select.POLLIN)
            poll.poll(max(0.0, until_s - time.monotonic()) * 1000)

    def _left(self) -> list[int]:
        return [rank for rank, one in self._ranks.items() if one.process.poll() is None]

    def _watch(self, on_exit: OnExit) -> None:
        poll = select.poll()
        ranks = {one.pidfd: rank for rank, one in self._ranks.items()}
        for pidfd in ranks:
            poll.register(pidfd, select.POLLIN)
        while ranks:
            for pidfd, _ in poll.poll():
                rank = ranks.pop(pidfd)
                poll.unregister(pidfd)
                code = self._ranks[rank].process.wait()
                if not self._stopping:
                    on_exit(rank, code)


def how_it_ended(code: int) -> str:
    """A return code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
