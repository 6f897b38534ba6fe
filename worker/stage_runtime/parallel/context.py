"""This rank's place among the others, and the way to talk to them: a control group a copy of the model, and a data
group for each axis along which tensors are exchanged.

All of them are raw process groups: there is no default group and no device mesh. A rank that has nobody to meet never
touches torch.distributed (PARALLEL-INV-004). The others meet at a store that rank 0 serves, under a key that holds the
epoch and the digest of the topology: ranks of an older start, or that derived another layout, are never met.
"""

from __future__ import annotations

import importlib
import logging
import socket
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

import torch

from stage_api.errors import Fault, SpecError
from stage_api.names import ENV_MASTER_PORT
from stage_api.topology import GROUP_AXES, GroupAxis, Topology
from stage_runtime.core.errors import RendezvousTimeout
from stage_runtime.devices.kinds import compute_device
from stage_runtime.parallel.collectives import CPU, Collectives
from stage_runtime.parallel.lockstep import Lockstep

Address = tuple[str, int]

CLOSE_S: Final = 2.0  # for the transports' threads; after a failure they may wait for a peer that is gone
BACKLOG: Final = 1024

log = logging.getLogger(__name__)


DataGroup = GroupAxis | Literal["copy"]
"""Who exchanges tensors: the ranks along an axis of the topology, or all that share a copy of the model."""

DATA_GROUPS: Final[tuple[DataGroup, ...]] = (*GROUP_AXES, "copy")
"""In the order in which every rank makes them."""


@dataclass(slots=True, kw_only=True)
class ParallelContext:
    """One rank and its groups. Control and data never share one: after a fault here, only control is touched."""

    rank: int
    topology: Topology
    ranks: tuple[int, ...]
    """Those of this copy of the model, ascending: they run the same plan in the same order."""
    control: Lockstep
    """Of those. What they say to each other; never a tensor of the model."""
    data: Mapping[DataGroup, Collectives] = field(default_factory=dict)
    """Where tensors are exchanged, for the axes that somebody claimed."""
    _kept: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Ranks that share the copy."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """This rank's place among them; 0 leads and answers."""
        return self.ranks.index(self.rank)

    @property
    def collectives(self) -> int:
        """Collective calls so far, over all groups."""
        return self.control.collectives.count + sum(group.count for group in self.data.values())

    def keep(self, store: Any) -> None:
        """Hold on to the store that this rank serves, for as long as the context lives."""
        self._kept.append(store)

    def close(self) -> None:
        """Let go of the groups. Idempotent, and bounded: ending a transport can wait for a peer that is gone."""
        groups, self.data = [self.control.collectives, *self.data.values()], {}
        kept, self._kept = self._kept, []
        ending = threading.Thread(target=_end, args=(groups, kept), daemon=True, name="close-groups")
        del groups, kept  # the last references but control's, so that the destructors run in that thread
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            log.warning("the transports of a group did not close", extra={"rank": self.rank})


def _end(groups: list[Collectives], kept: list[Any]) -> None:
    for group in groups:
        group.close()
    groups.clear()
    kept.clear()


def group_of(topology: Topology, rank: int, group: DataGroup = "copy") -> tuple[int, ...]:
    """The ranks that form one `group` with `rank`, in its order; by default those that share a copy of the model."""
    if group != "copy":
        return topology.group_of(rank, group)
    data = topology.coordinates[rank].data
    return tuple(other for other, at in enumerate(topology.coordinates) if at.data == data)


def meets(topology: Topology, rank: int, data: Collection[DataGroup] = ()) -> tuple[int, ...]:
    """The ranks that `rank` has to meet to form its groups, itself among them; alone it needs no group."""
    groups = [group_of(topology, rank, group) for group in ("copy", *data)]
    return tuple(sorted({other for group in groups for other in group}))


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


def join(  # noqa: PLR0913 - who meets, where, and for what
    topology: Topology,
    rank: int,
    store_address: Address,
    epoch: int,
    timeout_s: float,
    *,
    data: Collection[DataGroup] = (),
    device: torch.device = CPU,
) -> ParallelContext | None:
    """Meet the ranks of this rank's groups, within `timeout_s`, which also bounds each collective later.

    `data`: the groups whose tensors are exchanged, on `device`. None for a rank that has nobody to meet: nothing is
    initialised then (PARALLEL-INV-004). Raises: RendezvousTimeout, naming the ranks that did not come.
    """
    others = meets(topology, rank, data)
    if len(others) == 1:
        return None
    deadline = time.monotonic() + timeout_s
    store = _reach(topology, rank, store_address, epoch, deadline)
    _await_all(store, rank, others, deadline)
    connect = partial(_connect, store, rank, store_address, timeout_s)
    ranks = group_of(topology, rank)
    try:
        control = connect("control", ranks, CPU)
        groups = {
            group: connect(group, members, device)
            for group in DATA_GROUPS
            if group in data and len(members := group_of(topology, rank, group)) > 1
        }
    except RuntimeError as error:
        raise RendezvousTimeout(f"rank {rank} could not connect to its groups: {error}", rank=rank) from error
    return ParallelContext(
        rank=rank, topology=topology, ranks=ranks, control=Lockstep(control), data=groups, _kept=[store]
    )


def _reach(topology: Topology, rank: int, address: Address, epoch: int, deadline: float) -> Any:
    """This life's part of the store."""
    c10d = _c10d()
    host, port = address
    left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
    try:
        store = c10d.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=left)
    except RuntimeError as error:
        message = f"rank {rank} did not reach the store of rank 0 at {host}:{port}: {error}"
        raise RendezvousTimeout(message, rank=0) from error
    return c10d.PrefixStore(f"epoch-{epoch}/{topology.digest}", store)


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


def _connect(  # noqa: PLR0913 - one group of many
    store: Any,
    rank: int,
    store_address: Address,
    timeout_s: float,
    name: str,
    ranks: tuple[int, ...],
    device: torch.device,
) -> Collectives:
    """The transport of one group, for tensors on `device`, under a name that no other group has."""
    c10d = _c10d()
    index, timeout = ranks.index(rank), timedelta(seconds=timeout_s)
    own = c10d.PrefixStore(f"{name}-{ranks[0]}", store)
    group = compute_device(device).collectives(own, index, len(ranks), timeout)
    if group is None:
        device = CPU
        options = c10d.ProcessGroupGloo._Options()
        options._timeout = timeout
        # By the address that leads to the store: host names resolve to whatever /etc/hosts says.
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(store_address))]
        group = c10d.ProcessGroupGloo(own, index, len(ranks), options)
    return Collectives(group, ranks, index, device=device, timeout_s=timeout_s)


def _c10d() -> Any:
    """torch.distributed, imported by ranks that have a group only. Its annotations lack what is used here."""
    return importlib.import_module("torch.distributed")


def _own_address(towards: Address) -> str:
    """This host's address on the route to `towards`; nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
