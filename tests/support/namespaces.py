"""Two machines on one: network namespaces that are joined by a cable, and programs that run in them."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_FILES = Path("/etc/netns")
"""What is here in a folder of a namespace's name stands in /etc for programs that `ip netns exec` runs."""
_FIRST, _SECOND = "10.213.7.1", "10.213.7.2"


@dataclass(frozen=True)
class Host:
    """One of the two."""

    name: str
    namespace: str
    interface: str
    address: str

    @property
    def wrapper(self) -> tuple[str, ...]:
        """Before a command, it has it run here; the process stays the same."""
        return ("ip", "netns", "exec", self.namespace)

    def call(self, work: Callable[[], T]) -> T:
        """Do `work` here, in a thread of its own: sockets belong to the namespace that they were made in."""
        with ThreadPoolExecutor(1, initializer=self._enter) as pool:
            return pool.submit(work).result()

    def pull_the_cable(self) -> None:
        """Nothing is refused, nothing arrives."""
        _ip("-n", self.namespace, "link", "set", self.interface, "down")

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.namespace}") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "can't enter the namespace")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them. Skips the test where this user may not make any."""
    mark = secrets.token_hex(3)
    hosts = (
        Host("first", f"om-{mark}-a", f"om{mark}a", _FIRST),
        Host("second", f"om-{mark}-b", f"om{mark}b", _SECOND),
    )
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.namespace)
                _know_by_name(host, hosts)
            first, second = hosts
            _ip(
                *("-n", first.namespace, "link", "add", first.interface, "type", "veth"),
                *("peer", "name", second.interface, "netns", second.namespace),
            )
            for host in hosts:
                _ip("-n", host.namespace, "link", "set", "lo", "up")
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
                _ip("-n", host.namespace, "link", "set", host.interface, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"NOT TESTED: a replica over two hosts needs network namespaces: {why}")
        yield hosts
    finally:
        for host in hosts:
            shutil.rmtree(_FILES / host.namespace, ignore_errors=True)
            if os.path.exists(f"/run/netns/{host.namespace}"):
                with suppress(subprocess.CalledProcessError):
                    _ip("netns", "delete", host.namespace)


def _know_by_name(host: Host, hosts: Iterable[Host]) -> None:
    folder = _FILES / host.namespace
    folder.mkdir(parents=True)
    known = [("127.0.0.1", "localhost"), *((one.address, one.name) for one in hosts)]
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
    (folder / "resolv.conf").write_text("")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
