"""What holds for every test: one thread, no network but this machine's own, nothing from outside.

The environment is set here, before anything imports torch, so that child processes inherit it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }
)
for _proxy in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(_proxy, None)
    os.environ.pop(_proxy.upper(), None)

pytest_plugins = ("support.cluster_fixtures", "support.tiny_fixtures", "support.two_workers")

# A slow machine is no fault of the code under test.
hypothesis.settings.register_profile("omnistage", deadline=None)
hypothesis.settings.load_profile("omnistage")


class NetworkReached(AssertionError):
    """A test tried to leave this machine."""


@pytest.fixture(scope="session", autouse=True)
def _loopback_only() -> Iterator[None]:
    """Refuse every connection, datagram and name look-up that would leave this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for method in ("connect", "connect_ex"):
            patch.setattr(socket.socket, method, _guarded(getattr(socket.socket, method)))
        patch.setattr(socket.socket, "sendto", _guarded(socket.socket.sendto))
        patch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))
        yield


@pytest.fixture(autouse=True)
def _grad_mode_stays() -> Iterator[None]:
    """Fail a test that leaves gradients switched off for those after it, as carelessly interleaved pipelines do."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("the test left gradients switched off in the main thread")


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, *args: Any) -> Any:
        address = args[-1]  # sendto(data, address) and sendto(data, flags, address)
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            raise NetworkReached(f"{call.__name__} to {address[0]}: tests stay on this machine")
        return call(self, *args)

    return guarded


def _guarded_lookup(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        if not _is_local(host):
            raise NetworkReached(f"look-up of {host!r}: tests stay on this machine")
        return call(host, *args, **kwargs)

    return guarded


def _is_local(host: str | bytes | None) -> bool:
    """Is `host` this machine: no name at all, localhost, or a loopback or wildcard address?"""
    name = host.decode() if isinstance(host, bytes) else host
    if not name or name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
