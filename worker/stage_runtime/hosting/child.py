"""The child process as its parent sees it: started, watched, signalled, ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from stage_runtime.core.errors import (
    DeviceLost,
    EngineDeadError,
    EngineHung,
    OutOfDeviceMemory,
    RendezvousTimeout,
)
from stage_runtime.executor.supervisor import how_it_ended

KILLED_S: Final = 10.0  # for the kernel to end a killed process
_BY_CODE: Final = {
    int(kind.exit_code): kind for kind in (EngineHung, DeviceLost, RendezvousTimeout, OutOfDeviceMemory)
}
HELD_BACK: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What a child is to be. Seconds."""

    factory: str
    """`module:function`, which makes the Engine from `argument` in the child."""
    argument: bytes
    startup_timeout_s: float
    """How long it may take to be ready."""
    grace_s: float
    """How long what runs may take to finish once the child itself is told to stop by SIGTERM."""
    name: str = "engine"
    log_as: str | None = None
    """Name of the stage in the child's log; None leaves its logging as Python has it."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


class ChildProcess:
    """One running `hosting/proc.py`. Belongs to the thread that started it, apart from `kill`.

    NB: the kernel kills it when that thread ends.
    """

    def __init__(self, address: str, environ: Mapping[str, str], hatch: int) -> None:
        """Start it; `address` is where its client listens, `hatch` what it hands shared memory through.

        Raises: OSError.
        """
        command = [
            sys.executable,
            "-m",
            "stage_runtime.hosting.proc",
            "--line",
            address,
            "--hatch",
            str(hatch),
            "--parent",
            str(os.getpid()),
        ]
        # The child inherits the mask. It takes signals once it has its handlers, so Ctrl-C can't end it halfway.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdin=subprocess.DEVNULL, pass_fds=(hatch,)
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def code(self) -> int | None:
        """Its return code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The same, waiting for so long."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.poll(timeout_s * 1000)
        return self.code()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. None is sent to another process, though its id may have been given away since."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Kill it if it still runs, and let go of it."""
        if self.code() is None:
            self.send(signal.SIGKILL)
            self.wait(KILLED_S)
        os.close(self.pidfd)


def death_of(code: int) -> EngineDeadError:
    """What a return code says of a child that ended without a word; negative is a signal."""
    return _BY_CODE.get(code, EngineDeadError)(f"the engine's process {how_it_ended(code)}")
