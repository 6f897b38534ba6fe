"""What the operator answers about itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from stage_operator.telemetry.health import HealthServer, Heart, Pulse

WELL = Pulse(lag_s=0, oldest_s=0, longest_s=0, quiet_s=0)


def ask(pulse: Pulse = WELL, lacks: str | None = None) -> dict[str, tuple[int, str]]:
    """What each page says."""

    async def main() -> dict[str, tuple[int, str]]:
        server = HealthServer(pulse=lambda: pulse, missing=lambda: lacks, metrics=lambda: b"some 1\n")
        port = await server.start(0)
        found: dict[str, tuple[int, str]] = {}
        try:
            async with aiohttp.ClientSession() as session:
                for page in ("livez", "readyz", "metrics", "other"):
                    async with session.get(f"http://127.0.0.1:{port}/{page}") as answer:
                        found[page] = (answer.status, await answer.text())
        finally:
            await server.stop()
        return found

    return asyncio.run(main())


def test_a_well_and_synced_replica_is_alive_and_ready() -> None:
    found = ask()
    assert found["livez"] == (200, "ok")
    assert found["readyz"] == (200, "ok")
    assert found["metrics"] == (200, "some 1\n")
    assert found["other"][0] == 404


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="NOT TESTED: this machine has one family only")
def test_a_port_that_the_system_chose_is_the_same_for_both_families() -> None:
    async def main() -> list[str]:
        server = HealthServer(pulse=lambda: WELL, missing=lambda: None, metrics=lambda: b"")
        port = await server.start(0)
        try:
            async with aiohttp.ClientSession() as session:
                found = []
                for host in ("127.0.0.1", "[::1]"):
                    async with session.get(f"http://{host}:{port}/livez") as answer:
                        found.append(await answer.text())
                return found
        finally:
            await server.stop()

    assert asyncio.run(main()) == ["ok", "ok"]


def test_a_replica_that_lacks_something_says_what_and_is_alive() -> None:
    found = ask(lacks="may not list pods")
    assert found["readyz"] == (503, "may not list pods")
    assert found["livez"][0] == 200


def test_a_replica_that_a_restart_would_mend_is_not_alive() -> None:
    found = ask(Pulse(lag_s=0, oldest_s=0, longest_s=0, quiet_s=1000))
    assert found["livez"] == (500, "no watch has moved for 1000.0 s, more than 150 s")


def test_a_loop_that_does_not_turn_is_late() -> None:
    times: Any = iter([0.0, 7.5])
    assert Heart(clock=lambda: next(times)).lag_s == 6.5
