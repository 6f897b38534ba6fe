"""Request lines, headers and framing on the wire, as any client might send them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from support.http_stage import IMAGES_URL, HttpStage, wait_until
from support.scripted import PATIENCE_S

GETS = ("/livez", "/readyz", "/startupz", "/metrics", "/v1/models", "/v1/models/shapes", "/openapi.json")
BODY = b'{"prompt":"a"}'
JSON = b"content-type: application/json\r\n"
POST = f"POST {IMAGES_URL} HTTP/1.1\r\nhost: stage\r\n".encode() + JSON


@pytest.fixture
def wire(stage: HttpStage) -> Iterator[socket.socket]:
    """A connection to the stage."""
    with socket.create_connection(stage.address, PATIENCE_S) as wire:
        yield wire


def everything(wire: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    parts = []
    while part := wire.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def answers(said: bytes) -> list[bytes]:
    """The final answers in what was said: status lines without the interim ones."""
    lines = [line for line in said.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [line.split(b" ")[1] for line in lines if not line.startswith(b"HTTP/1.1 1")]


# HEAD


@pytest.mark.parametrize("path", [*GETS, "/v1/models/other", "/nothing", IMAGES_URL])
def test_head_is_get_without_the_body(client: httpx.Client, path: str) -> None:
    """Also where there is nothing, or where only POST is."""
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    same_length = path not in ("/metrics", "/startupz", "/livez")  # these change from one moment to the next
    assert not same_length or head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("path", GETS)
def test_a_wrong_method_is_told_which_are_right(client: httpx.Client, path: str) -> None:
    refused = client.delete(path)
    assert refused.status_code == 405
    assert {"GET", "HEAD"} <= set(refused.headers["allow"].split(", "))


# Where it asks


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https"])
@pytest.mark.parametrize("path", ["/livez", "/v1/models/shapes", "/v1/models/shapes?a=b"])
def test_an_absolute_request_line_is_the_path_in_it(wire: socket.socket, scheme: str, path: str) -> None:
    wire.sendall(
        f"GET {scheme}://stage:8000{path} HTTP/1.1\r\nhost: stage\r\nconnection: close\r\n\r\n".encode()
    )
    assert answers(everything(wire)) == [b"200"]


def test_an_absolute_request_line_may_have_a_body(wire: socket.socket) -> None:
    head = POST.replace(b"POST /", b"POST http://stage/")
    wire.sendall(head + b"connection: close\r\ncontent-length: 14\r\n\r\n" + BODY)
    assert answers(everything(wire)) == [b"200"]


# What it may weigh


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nhost: stage\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: stage\r\n" + b"x: a\r\n" * 12_000 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: stage\r\n\r\n",
        b"GET /livez?" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: stage\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: stage\r\nx: " + b"a" * 300_000,
    ],
    ids=["a long header", "many headers", "a long path", "a long query", "no end"],
)
def test_a_head_that_is_too_large_is_refused_in_one_go_and_in_parts(stage: HttpStage, head: bytes) -> None:
    for size in (len(head), 1000):
        with socket.create_connection(stage.address, PATIENCE_S) as wire:
            said = b""
            try:
                for at in range(0, len(head), size):
                    wire.sendall(head[at : at + size])
                said = everything(wire)
            except (BrokenPipeError, ConnectionResetError):
                continue  # ended while the rest of it was on its way
            assert answers(said) == [b"431"]
            assert b"connection: close" in said.lower()


def test_a_head_of_common_size_passes(wire: socket.socket) -> None:
    wire.sendall(
        b"GET /livez HTTP/1.1\r\nhost: stage\r\nconnection: close\r\nx: " + b"a" * 16_000 + b"\r\n\r\n"
    )
    assert answers(everything(wire)) == [b"200"]


# How its body ends


CHUNKED = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 14\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: chunked\r\ncontent-length: 14\r\n\r\n" + CHUNKED,
        b"content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
        b"content-length: 14\r\ncontent-length: 15\r\n\r\n" + BODY,
        b"content-length: 14, 15\r\n\r\n" + BODY,
        b"content-length: +14\r\n\r\n" + BODY,
        b"content-length: 0x0e\r\n\r\n" + BODY,
        b"content-length: 1 4\r\n\r\n" + BODY,
        b"content-length: -1\r\n\r\n" + BODY,
        b"content-length : 14\r\n\r\n" + BODY,
        b"transfer-encoding : chunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: chunked, chunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: identity\r\n\r\n" + CHUNKED,
        b"transfer-encoding: xchunked\r\n\r\n" + CHUNKED,
        b"transfer-encoding: chunked\r\n\r\n+e\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n0xe\r\n" + BODY + b"\r\n0\r\n\r\n",
    ],
)
def test_a_body_whose_end_can_be_understood_in_two_ways_is_refused_and_its_connection_ended(
    wire: socket.socket, rest: bytes
) -> None:
    wire.sendall(POST + rest)
    said = everything(wire)
    assert [code for code in answers(said) if code not in (b"400", b"501")] == []
    assert b"connection: close" in said.lower() or not said


def test_chunks_in_http_1_0_are_refused(wire: socket.socket) -> None:
    wire.sendall(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"transfer-encoding: chunked\r\n\r\n" + CHUNKED)
    assert answers(everything(wire)) == [b"400"]


def test_what_the_parser_refuses_has_the_envelope_and_an_id(wire: socket.socket) -> None:
    wire.sendall(b"what?\r\n\r\n")
    head, _, body = everything(wire).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: req-" in head.lower()
    assert json.loads(body)["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("coding", "status"),
    [("gzip", 415), ("br", 415), ("x", 415), ("gzip, identity", 415), ("identity", 200), ("", 200)],
)
def test_a_body_is_not_decoded_and_one_that_would_have_to_be_is_refused(
    client: httpx.Client, coding: str, status: int
) -> None:
    headers = {"content-type": "application/json", "content-encoding": coding}
    assert client.post(IMAGES_URL, content=BODY, headers=headers).status_code == status


# What it says twice


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"prompt": "a", "n": 1, "n": 2}', "n"),
        ('{"prompt": "a", "prompt": "a"}', "prompt"),
        ('{"prompt": "a", "seed": null, "seed": 1}', "seed"),
        ('{"prompt": "a", "\\u006e": 1, "n": 2}', "n"),
        ('{"prompt": "a", "metadata": {"x": 1, "x": 1}}', "x"),
        ('{"prompt": "a", "metadata": [[{"y": {"z": 1, "z": 2}}]]}', "z"),
        ('{"": 1, "prompt": "a", "": 2}', ""),
    ],
)
def test_a_key_that_stands_twice_is_refused_at_any_depth(client: httpx.Client, body: str, key: str) -> None:
    answer = client.post(IMAGES_URL, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == key
    assert "twice" in answer.json()["error"]["message"]


# Clients that say no more


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("path", [path.encode() for path in GETS])
def test_a_client_that_says_no_more_is_answered(wire: socket.socket, path: bytes, version: bytes) -> None:
    wire.sendall(b"GET " + path + b" HTTP/" + version + b"\r\nhost: stage\r\n\r\n")
    wire.shutdown(socket.SHUT_WR)
    assert answers(everything(wire)) == [b"200"]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("stream", [b"false", b"true"])
def test_a_client_that_says_no_more_gets_its_picture_however_long_that_takes(
    stage: HttpStage, wire: socket.socket, version: bytes, stream: bytes
) -> None:
    gate = stage.executor.block()
    body = b'{"prompt":"a","stream":' + stream + b"}"
    wire.sendall(
        POST.replace(b"HTTP/1.1", b"HTTP/" + version) + f"content-length: {len(body)}\r\n\r\n".encode() + body
    )
    wire.shutdown(socket.SHUT_WR)
    gate.wait_arrival()
    if version == b"1.1":
        asked = wire.recv(1000, socket.MSG_PEEK)  # it is asked whether it is there, before anything is drawn
        assert asked.startswith((b"HTTP/1.1 100 ", b"HTTP/1.1 200 "))
    gate.open()
    said = everything(wire)
    assert answers(said) == [b"200"]
    assert b"b64_json" in said


@pytest.mark.parametrize("stream", [False, True])
def test_the_work_of_a_client_that_says_no_more_and_then_leaves_is_taken_back(
    stage: HttpStage, stream: bool
) -> None:
    gate = stage.executor.block()
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    with socket.create_connection(stage.address, PATIENCE_S) as wire:
        wire.sendall(POST + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        gate.wait_arrival()
        wire.shutdown(socket.SHUT_WR)
    wait_until(lambda: stage.engine.snapshot().running == 0)
    gate.open()
    stage.wait_idle()
