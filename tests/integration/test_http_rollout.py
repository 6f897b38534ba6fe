"""Clients that keep their connections open and try twice again, as most do: a drain fails none of them."""

from __future__ import annotations

import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import openai
import pytest

from support.balancer import Backend, Balancer
from support.http_process import serving
from support.http_stage import wait_until
from support.scripted import PATIENCE_S

CLIENTS = 6

pytestmark = pytest.mark.timeout(300)


def is_ready(backend: Backend) -> bool:
    try:
        return httpx.get(f"http://{backend[0]}:{backend[1]}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def is_served(backend: Backend) -> bool:
    while not is_ready(backend):
        pass
    return True


@pytest.mark.parametrize("admit_s", [0.0, 1.0], ids=["that refuses at once", "that admits for a while"])
def test_a_drain_fails_no_default_client_while_another_replica_is_ready(admit_s: float) -> None:
    """With `admit_s` 0 the balancer still sends connections for a while, all of which are refused."""
    over, drawn, failures = threading.Event(), [0] * CLIENTS, list[BaseException]()

    def go_on(place: int, url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            while not over.is_set():
                try:
                    client.images.generate(prompt="a", extra_body={"num_inference_steps": 3})
                    drawn[place] += 1
                except openai.OpenAIError as error:
                    failures.append(error)

    with ExitStack() as held:
        (going, first), (_, second) = (
            held.enter_context(serving(admit_s=admit_s, finish_s=30.0)) for _ in range(2)
        )
        assert is_served(first)
        assert is_served(second)
        balancer = held.enter_context(Balancer([first, second], is_ready))
        askers = held.enter_context(ThreadPoolExecutor(CLIENTS + 1))
        held.callback(over.set)
        long = askers.submit(
            httpx.post,
            f"http://{first[0]}:{first[1]}/v1/images/generations",
            json={"prompt": "a", "num_inference_steps": 100},
            timeout=PATIENCE_S,
        )
        for place in range(CLIENTS):
            askers.submit(go_on, place, balancer.url)
        wait_for_more(drawn)
        going.send_signal(signal.SIGTERM)
        assert going.wait(PATIENCE_S) == 0
        assert long.result().status_code == 200
        wait_for_more(drawn)
    assert failures == []


def wait_for_more(drawn: list[int]) -> None:
    """Until each client has drawn twice more."""
    before = list(drawn)
    while any(now < then + 2 for now, then in zip(drawn, before, strict=True)):
        threading.Event().wait(0.01)


def test_from_the_signal_on_every_answer_ends_its_connection_and_idle_ones_end_by_themselves() -> None:
    paths = ("/livez", "/readyz", "/v1/models", "/metrics", "/nothing", "/v1/images/generations")
    with serving(admit_s=30.0) as (process, backend), ExitStack() as held:
        assert is_served(backend)
        client = held.enter_context(httpx.Client(base_url=f"http://{backend[0]}:{backend[1]}"))
        assert "connection" not in client.get("/livez").headers
        silent, answered = (
            held.enter_context(socket.create_connection(backend, PATIENCE_S)) for _ in range(2)
        )
        answered.sendall(b"GET /livez HTTP/1.1\r\nhost: stage\r\n\r\n")
        assert answered.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        while is_ready(backend):
            pass
        assert {client.get(path).headers["connection"] for path in paths} == {"close"}
        for idle in (silent, answered):
            while idle.recv(1000):
                pass


def test_a_crowd_within_a_low_limit_of_open_files_holds_up_no_probe_and_fills_no_log() -> None:
    """More connections than the process may open files: idle ones, and half of them in the midst of a head."""
    with serving(files=128) as (process, backend), ExitStack() as held:
        assert is_served(backend)
        for place in range(300):
            one = held.enter_context(socket.create_connection(backend, PATIENCE_S))
            one.sendall(b"GET /livez HT" if place % 2 else b"")
            if place % 50 == 0:
                assert is_ready(backend)
        assert is_ready(backend)
        body = {"prompt": "a", "num_inference_steps": 1}
        url = f"http://{backend[0]}:{backend[1]}/v1/images/generations"
        wait_until(lambda: httpx.post(url, json=body, timeout=PATIENCE_S).status_code == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
