"""This rank's place among those that share its copy of the model, and the way to talk to them.

A rank that has its copy for itself never touches torch.distributed (PARALLEL-INV-004). The others meet at a store that
rank 0 serves, under a key that holds the epoch and the digest of the topology: ranks of an older start, or that
derived another layout, are never met.
"""

from __future__ import annotations

import importlib
import logging
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch

from stage_api.errors import Fault, SpecError
from stage_api.names import ENV_MASTER_PORT
from stage_api.topology import Topology
from stage_runtime.core.errors import RendezvousTimeout
from stage_runtime.devices.kinds import compute_device
from stage_runtime.parallel.collectives import Collectives
from stage_runtime.parallel.lockstep import Lockstep

Address = tuple[str, int]

CLOSE_S: Final = 2.0  # for the transports' threads; after a failure they may wait for a peer that is gone
BACKLOG: Final = 1024

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ParallelContext:
    """One rank and its group: the ranks of its copy of the model, which run the same plan in the same order."""

    rank: int
    topology: Topology
    ranks: tuple[int, ...]
    """The group, ascending."""
    lockstep: Lockstep | None = None
    """None for a rank alone."""
    _kept: list[Any] = field(default_factory=list)

    @classmethod
    def single(cls, topology: Topology, rank: int) -> ParallelContext:
        """A rank that has its copy of the model for itself."""
        return cls(rank=rank, topology=topology, ranks=(rank,))

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """This rank's place in the group; 0 leads and answers."""
        return self.ranks.index(self.rank)

    @property
    def cfg(self) -> int:
        """On how many ranks the calls of the denoiser are spread."""
        return self.topology.degrees["cfg"]

    def agree(self, position: int) -> int:
        """How many commands the leader has read; see `Lockstep.agree`. Alone: `position`."""
        return position if self.lockstep is None else self.lockstep.agree(position)

    def keep(self, store: Any) -> None:
        """Hold on to the store that this rank serves, for as long as the context lives."""
        self._kept.append(store)

    def close(self) -> None:
        """Let go of the group. Idempotent, and bounded: ending a transport can wait for a peer that is gone."""
        lockstep, self.lockstep, kept = self.lockstep, None, self._kept
        self._kept = []
        if lockstep is None:
            return
        ending = threading.Thread(target=_end, args=(lockstep, kept), daemon=True, name="close-group")
        del lockstep, kept  # the last references, so that the destructors run in that thread
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            log.warning("the group's transport did not close", extra={"rank": self.rank})


def _end(lockstep: Lockstep, kept: list[Any]) -> None:
    lockstep.close()
    kept.clear()


def group_of(topology: Topology, rank: int) -> tuple[int, ...]:
    """The ranks that share one copy of the model with `rank`, ascending."""
    data = topology.coordinates[rank].data
    return tuple(other for other, at in enumerate(topology.coordinates) if at.data == data)


def serve_store(host: str, port: int = 0) -> tuple[Any, int]:
    """A store that listens on `host` only, and its port (0: any free one). It lives as long as it is held.

    Raises: SpecError when the port can't be had.
    """
    c10d = _c10d()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        got = f"{host}, port {port}: {error.strerror or error}"
        raise SpecError([Fault(ENV_MASTER_PORT, "a port that is free", got)]) from error
    port = listener.getsockname()[1]
    # Handed a listener, since the store itself would listen on every interface.
    store = c10d.TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listener.detach(),
    )
    return store, port


def join(
    topology: Topology,
    rank: int,
    store_address: Address,
    epoch: int,
    timeout_s: float,
    device: Any = "cpu",
) -> ParallelContext:
    """Meet the other ranks of this copy of the model, within `timeout_s`, which also bounds each collective later.

    A rank alone in its copy meets nobody. Raises: RendezvousTimeout, naming the ranks that did not come.
    """
    ranks = group_of(topology, rank)
    if len(ranks) == 1:
        return ParallelContext.single(topology, rank)
    deadline = time.monotonic() + timeout_s
    store = _reach(topology, rank, store_address, epoch, deadline)
    _await_all(store, rank, ranks, deadline)
    try:
        collectives = _connect(store, ranks, rank, store_address, timeout_s, torch.device(device))
    except RuntimeError as error:
        raise RendezvousTimeout(f"rank {rank} could not connect to its group: {error}", rank=rank) from error
    return ParallelContext(rank=rank, topology=topology, ranks=ranks, lockstep=Lockstep(collectives))


def _reach(topology: Topology, rank: int, address: Address, epoch: int, deadline: float) -> Any:
    """The group's part of the store."""
    c10d = _c10d()
    host, port = address
    left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
    try:
        store = c10d.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=left)
    except RuntimeError as error:
        message = f"rank {rank} did not reach the store of rank 0 at {host}:{port}: {error}"
        raise RendezvousTimeout(message, rank=0) from error
    copy = topology.coordinates[rank].data
    return c10d.PrefixStore(f"epoch-{epoch}/{topology.digest}/copy-{copy}", store)


def _await_all(store: Any, rank: int, ranks: tuple[int, ...], deadline: float) -> None:
    store.set(f"here/{rank}", "1")
    left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
    try:
        store.wait([f"here/{other}" for other in ranks], left)
    except RuntimeError as error:
        missing = _missing(store, ranks)
        names = ", ".join(map(str, missing)) or "unknown"
        raise RendezvousTimeout(
            f"rank {rank} waited in vain for ranks: {names}", rank=missing[0] if missing else None
        ) from error


def _missing(store: Any, ranks: tuple[int, ...]) -> list[int]:
    try:
        return [other for other in ranks if not store.check([f"here/{other}"])]
    except RuntimeError:
        return [0]  # the store itself is gone, and rank 0 serves it


def _connect(
    store: Any,
    ranks: tuple[int, ...],
    rank: int,
    store_address: Address,
    timeout_s: float,
    device: torch.device,
) -> Collectives:
    """Sockets between all ranks of the group, and on an accelerator a group of its own for what lies there."""
    c10d = _c10d()
    index, timeout = ranks.index(rank), timedelta(seconds=timeout_s)
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timeout
    # By the address that leads to the store: host names resolve to whatever /etc/hosts says.
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(store_address))]
    group = c10d.ProcessGroupGloo(c10d.PrefixStore("cpu", store), index, len(ranks), options)
    meeting = c10d.PrefixStore("device", store)
    there = compute_device(device).collectives(meeting, index, len(ranks), timeout)
    on_device = None if there is None else (there, device)
    return Collectives(group, ranks, index, on_device=on_device, timeout_s=timeout_s)


def _c10d() -> Any:
    """torch.distributed, imported by ranks that have a group only. Its annotations lack what is used here."""
    return importlib.import_module("torch.distributed")


def _own_address(towards: Address) -> str:
    """This host's address on the route to `towards`; nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
