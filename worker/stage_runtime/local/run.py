"""`omnistage run`: one stage on this machine, by the command that a pod runs, as a child.

Signals are passed on, the child's exit code becomes this process's, and neither outlives the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Final

from stage_api import names
from stage_api.config import StageConfig
from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.exit import ENV_TERMINATION_LOG
from stage_runtime.local.leash import ParentEnd
from stage_runtime.local.manifest import local_config
from stage_runtime.local.watch import announce

LOCAL_HOST: Final = "127.0.0.1"
_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_SIGNAL: Final = 128  # added to its number, as shells do


def run(manifest: Path, *, host: str = LOCAL_HOST, port: int | None = None) -> int:
    """Serve the manifest's stage until it is told to stop or dies; the exit code. Only for the main thread.

    Raises: SpecError for a manifest that is wrong or that one machine can't run.
    """
    config = local_config(manifest)
    with tempfile.TemporaryDirectory(prefix="omnistage-") as folder:  # only its owner can look into it
        return _Run(config, Path(folder), host, port).to_its_end()


class _Run:
    """One child from start to end."""

    def __init__(self, config: StageConfig, folder: Path, host: str, port: int | None) -> None:
        self._config = config
        self._file = folder / names.CONFIG_FILE
        self._report = folder / "report.json"
        self._listen = ("--host", host, *(("--port", str(port)) if port is not None else ()))
        self._child: subprocess.Popen[bytes] | None = None
        self._interrupted = False

    def to_its_end(self) -> int:
        """Start the child and wait for it."""
        self._file.write_text(self._config.encode(), encoding="utf-8")
        before = {number: signal.getsignal(number) for number in _PASSED_ON}
        with ParentEnd() as leash:
            try:
                child = self._start(leash)
                threading.Thread(
                    target=announce, args=(leash, self._config), name="announce", daemon=True
                ).start()
                status = child.wait()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        return self._account_for(status)

    def _start(self, leash: ParentEnd) -> subprocess.Popen[bytes]:
        # Held back until the child can be told, and in the child until it can listen: none is lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        try:
            for number in _PASSED_ON:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    signal.signal(number, self._pass_on)
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "stage_runtime", "serve", "--config", str(self._file)),
                    *(*self._listen, "--leash", str(leash.fd)),
                ],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    names.ENV_STAGE: self._config.name,
                    ENV_TERMINATION_LOG: str(self._report),
                },
                pass_fds=(leash.fd,),
                process_group=0,  # a terminal's Ctrl-C comes here only, and reaches the child once
            )
            leash.handed_over()
            return self._child
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            return
        if number == signal.SIGINT and self._interrupted:
            self._child.kill()
            return
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _account_for(self, status: int) -> int:
        """The exit code for a child's status, and its last words for people."""
        if status < 0:
            name = signal.Signals(-status).name
            print(f"omnistage: {self._config.name} was killed by {name}", file=sys.stderr)
            return _BY_SIGNAL - status
        report = TerminationReport.decode(self._report.read_bytes()) if self._report.exists() else None
        if status != ExitCode.DRAINED:
            why = report.message if report is not None else "it left no report"
            print(f"omnistage: {self._config.name} ended with {status}: {why}", file=sys.stderr)
        return status
