"""On which addresses the first pod of a replica listens for the others."""

from __future__ import annotations

import ipaddress
import socket


def listening_host(master: str) -> str:
    """`master` is where the others look for it: on this machine only, it need not be heard elsewhere."""
    try:
        if ipaddress.ip_address(master).is_loopback:
            return master
    except ValueError:
        pass  # a name: of which of this host's addresses is the resolver's business
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
