"""The children of one process: started, watched by a thread, and ended together in bounded time."""

from __future__ import annotations

import logging
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Final

from stage_runtime.processes.child import KILLED_S, Child
from stage_runtime.processes.wakeup import Wakeup

LOOK_S: Final = 2.0
"""Between two looks whether one is stopped."""
STOPPED_S: Final = 10.0
"""Who was seen stopped for so long hangs. Only time in which this process itself ran is counted."""

log = logging.getLogger(__name__)

OnExit = Callable[[int, int], None]
"""(number, return code: negative is a signal)."""
OnStopped = Callable[[int], None]
"""(number)."""


class Children:
    """Processes by number, a rank's for instance. `start` and `stop` belong to one thread, the rest to any."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        self._watcher: Thread | None = None
        self._stopping = Wakeup()
        self._stops = False

    def start(
        self,
        commands: Mapping[int, Sequence[str]],
        environ: Mapping[str, str],
        keep: Mapping[int, int] | None = None,
    ) -> None:
        """Start them. `keep`: a file descriptor that one is to inherit; the others get none.

        Raises: OSError; those that were started are killed then.
        """
        try:
            for number, command in commands.items():
                kept = () if keep is None else (keep[number],)
                self._children[number] = Child(command, environ, keep=kept)
        except OSError:
            self.stop(lambda: None, patience_s=0.0)
            raise

    def watch(self, on_exit: OnExit, on_stopped: OnStopped = lambda number: None) -> None:
        """Call `on_exit` from a thread of its own as soon as one ends, once for each, until `stop`.

        `on_stopped`: one is stopped (SIGSTOP, a debugger) and so hangs. Called once for each, too.
        """
        watch = (on_exit, on_stopped)
        self._watcher = Thread(target=self._watch, args=watch, name="children", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> dict[int, int]:
        return {number: child.pid for number, child in self._children.items()}

    @property
    def sentinels(self) -> list[int]:
        """File descriptors that become readable when one ends."""
        return [child.pidfd for child in self._children.values()]

    def ended(self) -> dict[int, int]:
        """Return codes of those that have ended."""
        codes = {number: child.code for number, child in self._children.items()}
        return {number: code for number, code in codes.items() if code is not None}

    def frozen(self) -> set[int]:
        """Those that are stopped by a signal or a debugger: they live, and do nothing."""
        return {number for number, child in self._children.items() if child.frozen}

    def stop(self, ask: Callable[[], None], *, patience_s: float) -> None:
        """End all: ask, wait for `patience_s`, kill. 0 kills at once. Idempotent.

        They leave the signals that stop a process to their parent, so there is nothing between the two.
        """
        self._stops = True
        if patience_s > 0 and self._left():
            ask()
            self.wait(patience_s)
            for number in self._left():
                log.warning("a process did not end when asked", extra={"number": number})
        self._stopping.ring()
        self.kill()
        self.wait(KILLED_S)
        if self._watcher is not None:
            self._watcher.join(KILLED_S)
        for child in self._children.values():
            child.close()

    def kill(self) -> None:
        """SIGKILL to all that live, from any thread: what hangs in a device's driver can't be asked."""
        for number in self._left():
            self._children[number].send(signal.SIGKILL)

    def wait(self, patience_s: float) -> None:
        """Until all have ended, at most so long."""
        until_s = time.monotonic() + patience_s
        for number in self._left():
            self._children[number].wait(until_s - time.monotonic())

    def _left(self) -> list[int]:
        return [number for number, child in self._children.items() if child.code is None]

    def _watch(self, on_exit: OnExit, on_stopped: OnStopped) -> None:
        poll = select.poll()
        numbers = {child.pidfd: number for number, child in self._children.items()}
        for fd in (*numbers, self._stopping.fd):
            poll.register(fd, select.POLLIN)
        looks: dict[int, int] = {}
        while numbers:
            ready = poll.poll(LOOK_S * 1000)
            if self._stops:
                return
            for pidfd, _ in ready:
                number = numbers.pop(pidfd)
                poll.unregister(pidfd)
                on_exit(number, self._children[number].wait() or 0)
            frozen = self.frozen()
            for number in frozen if not ready else ():
                looks[number] = looks.get(number, 0) + 1
                if looks[number] == round(STOPPED_S / LOOK_S):
                    on_stopped(number)
            looks = {number: count for number, count in looks.items() if number in frozen}
