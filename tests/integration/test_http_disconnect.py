"""A client that leaves takes its work with it; one that is slow costs nobody else anything."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from stage_runtime.core.outcome import Outcome, Output, Progressed
from support.builders import EngineBuilder
from support.http_stage import IMAGES_URL, HttpStage, PictureExecutor, wait_until
from support.scripted import PATIENCE_S, Gate

LONG = {"prompt": "a", "num_inference_steps": 500}


def ask(stage: HttpStage, body: dict[str, object], *, receive_buffer: int | None = None) -> socket.socket:
    """A connection over which images were asked for; nothing has been read from it."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(PATIENCE_S)
    connection.connect(stage.address)
    content = json.dumps(body).encode()
    head = f"POST {IMAGES_URL} HTTP/1.1\r\nhost: stage\r\ncontent-type: application/json\r\nconnection: close\r\n"
    connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_ends_within_one_step_of_its_client_leaving(stream: bool) -> None:
    """Case B01."""
    with HttpStage() as stage:
        gate = stage.executor.block()
        connection = ask(stage, LONG | {"stream": stream, "n": 2})
        gate.wait_arrival()
        connection.close()
        wait_until(lambda: stage.engine.snapshot().running == 0)
        gate.open()
        stage.wait_idle()
        assert [len(steps) for steps in stage.executor.steps.values()] == [1, 1]
        assert b'omnistage_requests_total{outcome="aborted",stage="test"} 2.0' in stage.metrics.exposition()


@pytest.mark.parametrize("stream", [False, True])
def test_a_waiting_request_leaves_the_line_with_its_client(stream: bool) -> None:
    """Case B63."""
    with HttpStage(EngineBuilder().slots(1)) as stage:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        connection = ask(stage, LONG | {"stream": stream, "n": 4})
        wait_until(lambda: stage.engine.snapshot().waiting == 4)
        connection.close()
        wait_until(lambda: stage.engine.snapshot().waiting == 0)
        gate.open()
        assert running.result(PATIENCE_S).status_code == 200


def test_a_client_that_leaves_after_the_first_preview_ends_its_request_within_one_step() -> None:
    with HttpStage(executor=HeldAfterPreview) as stage:
        connection = ask(stage, LONG | {"stream": True, "partial_images": 1})
        with connection.makefile("rb") as stage_says:
            while b"partial_image" not in stage_says.readline():
                pass
        assert isinstance(stage.executor, HeldAfterPreview)
        stage.executor.gate.wait_arrival()
        connection.close()
        wait_until(lambda: stage.engine.snapshot().running == 0)
        stage.executor.gate.open()
        stage.wait_idle()
        (steps,) = stage.executor.steps.values()
        assert len(steps) == 250 + 1


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten() -> None:
    with HttpStage() as stage, stage.client() as client:
        connection = socket.create_connection(stage.address)
        connection.sendall(
            f"POST {IMAGES_URL} HTTP/1.1\r\nhost: stage\r\ncontent-length: 1000\r\n\r\nhalf".encode()
        )
        connection.close()
        assert client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 200
        stage.wait_idle()


def test_a_slow_reader_gets_all_of_its_stream_while_the_server_holds_little_and_serves_others() -> None:
    """Case B102."""
    with HttpStage(executor=Noisy) as stage, stage.client() as client:
        body = {"prompt": "a", "n": 10, "stream": True, "partial_images": 3, "size": "256x256"}
        connection = ask(stage, body, receive_buffer=4096)
        stage.wait_idle()  # the engine is done with it, whatever the reader does
        assert client.post(IMAGES_URL, json={"prompt": "b"}).status_code == 200
        assert stage.unsent_bytes() < 1 << 20
        with connection, connection.makefile("rb") as stage_says:
            text = stage_says.read()
        assert text.count(b"event: image_generation.partial_image\n") == 30
        assert text.count(b"event: image_generation.completed\n") == 10
        assert text.count(b"data: [DONE]\n\n") == 1


def test_a_crowd_that_comes_and_goes_leaves_nothing_behind() -> None:
    """Case B36."""
    with HttpStage(EngineBuilder().step_mode().slots(4).queue(1000)) as stage:
        chance = random.Random(0)
        staying = []
        for place in range(100):
            body = {"prompt": "a", "num_inference_steps": chance.randint(1, 50), "n": chance.randint(1, 3)}
            connection = ask(stage, body | {"stream": place % 2 == 0})
            if chance.random() < 0.5:
                connection.close()
            else:
                staying.append((connection, body["n"]))
        for connection, count in staying:
            with connection, connection.makefile("rb") as stage_says:
                assert stage_says.read().count(b'"b64_json":') >= int(str(count))
        stage.wait_idle()
        load = stage.engine.snapshot()
        assert (load.waiting, load.running, load.outstanding_cost) == (0, 0, 0)


class HeldAfterPreview(PictureExecutor):
    """Stands at `gate` before the step after a preview."""

    gate: Gate

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick; a preview in it blocks the next one."""
        outcomes = super().poll(deadline_s)
        if any(isinstance(outcome, Progressed) and outcome.preview for outcome in outcomes):
            self.gate = self.block()
        return outcomes


class Noisy(PictureExecutor):
    """Makes pictures that no encoder makes small."""

    def _picture(self, request_id: str, pixel: Output) -> Output:
        flat = super()._picture(request_id, pixel)
        return replace(flat, data=random.Random(0).randbytes(len(flat.data)))
