"""The pods of a local replica beside its first: agents, as on a cluster, that meet the first on this machine.

They come and go with the first pod: they end when it does, and it is ended when one of them is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final, Self

from stage_api import names
from stage_api.config import StageConfig
from stage_api.outcome import TerminationReport
from stage_runtime.executor.launch import share_of_cores
from stage_runtime.ipc.keys import generate
from stage_runtime.ipc.socket_folder import private_folder
from stage_runtime.local.handover import Handover
from stage_runtime.local.parent_link import ParentEnd
from stage_runtime.local.pod import start_pod
from stage_runtime.processes.child import Child

MASTER: Final = "127.0.0.1"
ORDERLY_S: Final = 5.0  # for pods to end by themselves once another has


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a pod that nobody had asked to end."""

    ordinal: int
    status: int
    """As subprocess has it."""
    report: TerminationReport | None


class OtherPods:
    """Pods 1 and up of one replica. Nothing, where it has one pod only."""

    def __init__(self, config: StageConfig) -> None:
        self._config = config
        self._count = config.topology().pods - 1
        self._stack = ExitStack()
        self._handovers = [self._stack.enter_context(Handover(config)) for _ in range(self._count)]
        self._keys = self._new_keys() if self._count else None
        self._life: _Life | None = None

    def environ(self) -> Mapping[str, str]:
        """What the first pod of the next life needs to know. Ports are new each time: old ones may still be held."""
        if self._keys is None:
            return {names.ENV_GROUP_RANK: "0"}
        with socket.socket() as ranks, socket.socket() as store:
            for one in (ranks, store):
                one.bind((MASTER, 0))
            ports = [str(one.getsockname()[1]) for one in (ranks, store)]
        return {
            # Each pod takes itself to be alone on its machine.
            **share_of_cores(os.environ, self._config.topology().world_size),
            names.ENV_GROUP_RANK: "0",
            names.ENV_MASTER_ADDR: MASTER,
            names.ENV_RANKS_PORT: ports[0],
            names.ENV_MASTER_PORT: ports[1],
            names.ENV_KEYS: str(self._keys),
        }

    def start(self, environ: Mapping[str, str], first: Child) -> None:
        """Start them beside `first`, in its environment."""
        self._life = _Life(first)
        for ordinal, handover in enumerate(self._handovers, start=1):
            self._life.spawn(ordinal, handover, {**environ, names.ENV_GROUP_RANK: str(ordinal)})

    def end(self) -> Failure | None:
        """The first pod has ended: wait for the others to do so, and see to it. Which of them failed before it."""
        life, self._life = self._life, None
        return None if life is None else life.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._stack.close()

    def _new_keys(self) -> Path:
        folder = private_folder(None, names.KEY_SERVER_SECRET)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name, text in generate().items():
            (folder / name).write_text(text)
        return folder


class _Life:
    """The pods of one epoch."""

    def __init__(self, first: Child) -> None:
        self._first = first
        self._over = Event()
        self._lock = Lock()
        self._failure: Failure | None = None
        self._stack = ExitStack()
        self._pods: list[Child] = []
        self._watchers: list[Thread] = []

    def spawn(self, ordinal: int, handover: Handover, environ: Mapping[str, str]) -> None:
        parent_link = self._stack.enter_context(ParentEnd())
        pod = start_pod(handover, parent_link, environ, host=MASTER, port=0)
        self._pods.append(pod)
        watcher = Thread(
            target=self._watch, args=(ordinal, pod, handover), name=f"pod-{ordinal}", daemon=True
        )
        self._watchers.append(watcher)
        watcher.start()

    def end(self) -> Failure | None:
        self._over.set()
        until_s = time.monotonic() + ORDERLY_S
        for pod in self._pods:
            if pod.wait(until_s - time.monotonic()) is None:
                pod.send(signal.SIGKILL)
        for watcher in self._watchers:
            watcher.join(ORDERLY_S)
        for pod in self._pods:
            pod.close()
        self._stack.close()
        return self._failure

    def _watch(self, ordinal: int, pod: Child, handover: Handover) -> None:
        status = pod.wait() or 0
        if self._over.is_set():
            return
        with self._lock:
            self._failure = self._failure or Failure(ordinal, status, handover.report())
        # The first pod notices by itself, but for one that had not dialled it yet.
        if not self._over.wait(ORDERLY_S):
            self._first.send(signal.SIGTERM)
            if not self._over.wait(ORDERLY_S):
                self._first.send(signal.SIGKILL)
