"""Clients that say nothing, read nothing, or are too many: each is bounded, and none costs others anything."""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from stage_runtime.core.outcome import Outcome, Output, Progressed
from stage_runtime.server.http.connection import Bounds
from support.builders import EngineBuilder
from support.http_stage import IMAGES_URL, HttpStage, PictureExecutor, wait_until
from support.scripted import PATIENCE_S, Gate


def connected(stage: HttpStage) -> socket.socket:
    return socket.create_connection(stage.address, PATIENCE_S)


def is_alive(connection: socket.socket) -> bool:
    """Ask for a probe, and take in the whole answer."""
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: stage\r\n\r\n")
    said = b""
    while not said.endswith(b"}"):
        said += connection.recv(1000)
    return said.startswith(b"HTTP/1.1 200")


def is_cut(connection: socket.socket) -> bool:
    """Wait until the server ends it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nhost: st"], ids=["nothing", "half a head"])
def test_a_client_that_sends_no_whole_head_is_cut_off(said: bytes) -> None:
    with HttpStage(bounds=Bounds(head_s=0.05)) as stage, connected(stage) as connection:
        connection.sendall(said)
        assert is_cut(connection)


def test_half_a_head_after_an_answer_is_cut_off_too() -> None:
    with HttpStage(bounds=Bounds(head_s=0.5)) as stage, connected(stage) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: stage\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"GET /livez HTT")
        while connection.recv(1000):
            pass


def test_a_request_that_takes_longer_than_its_head_might_is_answered() -> None:
    with HttpStage(bounds=Bounds(head_s=0.05)) as stage, connected(stage) as other:
        gate = stage.executor.block()
        answer = stage.post({"prompt": "a"})
        gate.wait_arrival()
        assert is_cut(other)
        gate.open()
        assert answer.result(PATIENCE_S).status_code == 200


def test_a_reader_that_stalls_loses_its_request_while_its_connection_lives() -> None:
    engine = EngineBuilder().step_mode().slots(10)
    with HttpStage(engine, HeldNoise, bounds=Bounds(stall_s=0.1)) as stage, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(stage.address)
        content = (
            b'{"prompt":"a","n":10,"stream":true,"partial_images":3,"size":"256x256","num_inference_steps":8}'
        )
        head = f"POST {IMAGES_URL} HTTP/1.1\r\nhost: stage\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: len(stage.executor.steps) == 10)
        wait_until(lambda: stage.engine.snapshot().running == 0)
        assert isinstance(stage.executor, HeldNoise)
        stage.executor.gate.open()
        stage.wait_idle()
        assert b'omnistage_requests_total{outcome="aborted",stage="test"} 10.0' in stage.metrics.exposition()


@contextmanager
def at_work(stage: HttpStage) -> Iterator[None]:
    """One connection has a request under way."""
    gate = stage.executor.block()
    answer = stage.post({"prompt": "a"})
    gate.wait_arrival()
    yield
    gate.open()
    assert answer.result(PATIENCE_S).status_code == 200


def test_a_connection_too_many_is_told_to_come_back_and_its_probes_are_answered() -> None:
    with HttpStage(bounds=Bounds(served=1)) as stage, at_work(stage):
        with stage.client() as client:
            answer = client.post(IMAGES_URL, json={"prompt": "a"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["message"] == "too many connections"
            assert answer.headers["x-request-id"]
        with stage.client() as client:
            assert client.get("/livez").status_code == 200


def test_connections_far_too_many_are_cut_off_while_all_others_are_at_work() -> None:
    with HttpStage(bounds=Bounds(served=1, open=1)) as stage, at_work(stage), connected(stage) as second:
        assert is_cut(second)


@pytest.mark.parametrize("said", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nhost: stage\r\n\r\n"])
def test_the_connection_that_was_idle_longest_makes_room_for_a_new_one(said: bytes) -> None:
    """One that never said anything, one that stopped in the midst of a head, and one that was answered."""
    bounds = Bounds(served=2, open=2)
    with HttpStage(bounds=bounds) as stage, connected(stage) as first, connected(stage) as second:
        first.sendall(said)
        assert is_alive(second)
        with stage.client() as client:
            assert client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 200
        while first.recv(1000):
            pass
        assert is_alive(second)


def test_one_that_came_just_now_is_left_its_time_and_makes_room_once_it_is_quiet() -> None:
    with HttpStage(bounds=Bounds(served=1)) as stage, connected(stage) as first:
        with stage.client() as client:
            assert client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 503

        def served() -> bool:
            with stage.client() as client:
                return client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 200

        wait_until(served)
        assert is_cut(first)


@pytest.mark.parametrize(("files", "served"), [(16, 6), (64, 24), (128, 48), (256, 96), (512, 288)])
def test_a_process_that_may_open_few_files_takes_few_connections(files: int, served: int) -> None:
    bounds = Bounds.within(files)
    assert bounds.served == served
    assert bounds.served < bounds.open <= files - min(files // 2, 128)


@pytest.mark.parametrize("files", [1024, 4096, 1 << 20, resource.RLIM_INFINITY])
def test_a_process_that_may_open_many_files_has_the_usual_bounds(files: int) -> None:
    assert Bounds.within(files) == Bounds()


class HeldNoise(PictureExecutor):
    """Makes pictures that no encoder makes small, and stands at `gate` after the last preview."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self._previews = 0

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick; the last preview blocks the next one."""
        outcomes = super().poll(deadline_s)
        self._previews += sum(
            isinstance(outcome, Progressed) and bool(outcome.preview) for outcome in outcomes
        )
        if self._previews == 30:
            self.hold(self.gate)
        return outcomes

    def _picture(self, request_id: str, pixel: Output) -> Output:
        flat = super()._picture(request_id, pixel)
        return replace(flat, data=random.Random(0).randbytes(len(flat.data)))
