"""On which addresses the first pod of a replica listens for the others, and how they look for it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from stage_api.errors import Fault, SpecError

_MAX_PORT: Final = 65_535


def listening_host(master: str) -> str:
    """`master` is where the others look for it: on this machine only, it need not be heard elsewhere."""
    try:
        if ipaddress.ip_address(master).is_loopback:
            return master
    except ValueError:
        pass  # a name: of which of this host's addresses is the resolver's business
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def port_of(environ: Mapping[str, str], name: str, default: int) -> int:
    """The port that a variable names; `default` where it is not set. Raises: SpecError."""
    given = environ.get(name) or str(default)
    if not (given.isdecimal() and 0 < int(given) <= _MAX_PORT):
        raise SpecError([Fault(name, f"a port, 1..{_MAX_PORT}", given)])
    return int(given)


def dials_ipv6(address: str) -> bool:
    """Whether the way to such an address of ZeroMQ's may be by IPv6: by its name, it may be known by IPv6 alone.

    One of IPv4 is found all the same then, as one of IPv6 that stands for it.
    """
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return socket.has_dualstack_ipv6()
