"""Who a message comes from: a rank, one of its lanes, and the life of the group that it belongs to.

A life is a protocol, an epoch and a topology. It is a part of the identity, so that a rank of another life neither
takes the place of the rank with its number nor is taken for it.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from stage_runtime.ipc.messages import PROTOCOL

_IDENTITY: Final = re.compile(rb"(\d{1,9})(?:@([\w.]+))?(?:/([a-z]+))?")


class Peer(Struct, frozen=True):
    """Who is at the other end of a connection."""

    rank: int
    life: str = ""
    lane: str = ""
    """Empty for the rank's main thread, the only one that commands are sent to."""

    @property
    def identity(self) -> bytes:
        """As ZeroMQ knows it."""
        life = f"@{self.life}" if self.life else ""
        lane = f"/{self.lane}" if self.lane else ""
        return f"{self.rank}{life}{lane}".encode()


def peer_of(identity: bytes) -> Peer | None:
    """Whose identity it is; None when it is nobody's that could be a rank."""
    known = _IDENTITY.fullmatch(identity)
    if known is None:
        return None
    rank, life, lane = known.groups(default=b"")
    return Peer(int(rank), life.decode(), lane.decode())


def life_of(epoch: int, digest: str) -> str:
    """One life of a replica. `digest` is its topology's."""
    return f"{PROTOCOL}.{epoch}.{digest}"
