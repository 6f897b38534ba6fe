"""Where the pods of one replica meet, as each pod's environment says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import zmq
from msgspec import Struct

from stage_api import names
from stage_api.errors import Fault, SpecError
from stage_api.topology import Topology
from stage_runtime.ipc.addresses import listening_host, port_of
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.identity import life_of
from stage_runtime.ipc.keys import load_server


class MeetingPoint(Struct, frozen=True):
    """The first pod of a replica, for the ranks of the others."""

    host: str
    ranks_port: int
    keys: Path
    """Folder of the stage's keys."""

    @property
    def address(self) -> str:
        """Where the engine listens for ranks."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.ranks_port}"


def meeting_point(environ: Mapping[str, str]) -> MeetingPoint:
    """Raises: SpecError with what the environment lacks."""
    faults: list[Fault] = []
    host, port = environ.get(names.ENV_MASTER_ADDR, ""), 0
    if not host:
        faults.append(Fault(names.ENV_MASTER_ADDR, "the host name of the replica's first pod", "nothing"))
    try:
        port = port_of(environ, names.ENV_RANKS_PORT, names.RANKS_PORT)
    except SpecError as wrong:
        faults += wrong.faults
    if faults:
        raise SpecError(faults)
    return MeetingPoint(host, port, Path(environ.get(names.ENV_KEYS) or names.KEYS_DIR))


def pod_ordinal(environ: Mapping[str, str], topology: Topology) -> int:
    """Which pod of its replica this is, from 0. Raises: SpecError for one that the topology hasn't got."""
    given = environ.get(names.ENV_GROUP_RANK) or "0"
    if not (given.isdecimal() and int(given) < topology.pods):
        raise SpecError([Fault(names.ENV_GROUP_RANK, f"an integer 0..{topology.pods - 1}", given)])
    return int(given)


def spanning_life(topology: Topology, epoch: int) -> str:
    """What tells this group from others that may come to the same place; empty where nobody else can come."""
    return life_of(epoch, topology.digest) if topology.pods > 1 else ""


def listening_channel(environ: Mapping[str, str], life: str, on_gone: Callable[[int], None]) -> EngineChannel:
    """The engine's end for the ranks of all pods: this one's come as always, the others' over TCP.

    Raises: SpecError for an environment or keys that are missing, or a port that is taken.
    """
    point = meeting_point(environ)
    listen = listening_host(point.host), point.ranks_port
    keys = load_server(point.keys)
    try:
        return EngineChannel(listen=listen, keys=keys, life=life, on_gone=on_gone)
    except zmq.ZMQError as error:
        fault = Fault(names.ENV_RANKS_PORT, "a port that is free", f"{point.ranks_port}: {error.strerror}")
        raise SpecError([fault]) from error
