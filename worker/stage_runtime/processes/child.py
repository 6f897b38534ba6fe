"""One program that this process started: watched, signalled, ended, and its end in words.

It is started as a program, not by `multiprocessing`: nothing of the parent is imported or inherited, and there is no
helper process to leak. What it is to do about signals is said in `parent.py`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import DEATHS, EngineDeadError, ModelError

KILLED_S: Final = 10.0  # for the kernel to take a killed process's memory back
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """The process. `close` belongs to one thread, the rest to any.

    NB: where it asks the kernel to be killed with its parent, that means the *thread* that started it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        keep: Sequence[int] = (),
        own_group: bool = False,
    ) -> None:
        """Start it. `keep`: file descriptors that it inherits. `own_group`: a terminal's signals don't reach it.

        It begins with the signals that stop a process held back, so that none ends it before it listens to them.
        Raises: OSError.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                pass_fds=keep,
                process_group=0 if own_group else None,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid: Final = self._process.pid
        self.pidfd: Final = os.pidfd_open(self.pid)
        """Readable once it has ended."""
        self._closed = False

    @property
    def code(self) -> int | None:
        """Its return code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def frozen(self) -> bool:
        """It is stopped by a signal or a debugger: it lives, and does nothing."""
        return self.code is None and is_frozen(self.pid)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its return code, waiting for it so long. None: as long as it takes."""
        if self.code is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. None is sent to another process, though its id may have been given away since."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Kill it if it still runs, and let go of it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self.code is None:
            self.send(signal.SIGKILL)
            self.wait(KILLED_S)
        os.close(self.pidfd)


def how_it_ended(code: int) -> str:
    """A return code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def death_of(who: str, code: int, *, rank: int | None = None) -> EngineDeadError:
    """What its return code says of a process that ended without a word.

    Raises: SpecError, ModelError, for the codes that say so.
    """
    ended = f"{who} {how_it_ended(code)}"
    if code == ExitCode.CONFIG:
        raise SpecError([Fault("", "a config that every process can run", ended)])
    if code == ExitCode.MODEL:
        raise ModelError(ended)
    return DEATHS.get(code, EngineDeadError)(ended, rank=rank)


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or only what is left of it."""
    state, *fields = _stat(pid)
    return None if state in (b"", b"Z", b"X") else int(fields[18])


def is_frozen(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or by a debugger."""
    return _stat(pid)[0] in (b"T", b"t")


def _stat(pid: int) -> list[bytes]:
    """State, and what the kernel tells after it; an empty state when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return [b""]
    return stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
