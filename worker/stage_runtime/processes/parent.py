"""What a process owes its parent: it never outlives it, and leaves it to it when to stop."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

from stage_runtime.processes.child import STOPS

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now if the parent is gone already.

    From here on the signals that stop a process do nothing: a terminal, or whoever ends a whole group or control group,
    sends them to everybody, and what runs may finish when the parent says so. Only for the main thread.
    NB: to the kernel the parent is the *thread* that started this process, so that thread must live as long.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
