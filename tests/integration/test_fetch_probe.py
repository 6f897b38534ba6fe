"""While a model is fetched, whoever asks is told how far it is."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.server.probes.fetching import FetchProbe

NOW = StartProgress(activity=Activity.FETCHING, done=1_200_000_000, total=3_400_000_000)


def test_who_asks_is_told_and_afterwards_the_port_is_free() -> None:
    with FetchProbe("127.0.0.1", 0, lambda: NOW) as probe:
        port = probe.port
        answer = httpx.get(f"http://127.0.0.1:{port}/startupz", trust_env=False)
        assert answer.status_code == 503, "it has not started"
        assert StartProgress.of(answer.json()) == NOW
        assert httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).status_code == 404
    assert "fetch probe" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/startupz", trust_env=False)


def test_a_port_that_is_taken_is_no_fault_of_the_fetch() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, FetchProbe("127.0.0.1", taken.getsockname()[1], lambda: NOW) as probe:
        assert probe.port is None


def test_one_who_asks_badly_holds_nobody_else_up() -> None:
    with FetchProbe("127.0.0.1", 0, lambda: NOW) as probe:
        assert probe.port is not None
        for said in (b"", b"\x00\xff\r\n\r\n", b"GET /startupz HTTP/9\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", probe.port)) as bad:
                bad.sendall(said)
        answer = httpx.get(f"http://127.0.0.1:{probe.port}/startupz", trust_env=False, timeout=20)
        assert StartProgress.of(answer.json()) == NOW
