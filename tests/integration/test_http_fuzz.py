"""Whatever comes over the wire, the stage answers with its own words or closes, and serves on."""

from __future__ import annotations

import random
import socket

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from support.http_stage import IMAGES_URL, HttpStage
from support.scripted import PATIENCE_S

# A value that the schema allows may still be one that this model can't take: sizes, lengths.
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]


EXAMPLES = 150


GENERATE = "POST /v1/images/generations"
FINISH = "POST /v1/requests/{finish_id}/finish"
OPERATIONS = [GENERATE, FINISH, "GET /v1/models", "GET /v1/models/{name}"]


def test_the_description_holds_what_is_tried_here(stage: HttpStage) -> None:
    described = schemathesis.openapi.from_url(f"{stage.url}/openapi.json")
    assert [found.ok().label for found in described.get_all_operations()] == OPERATIONS


@pytest.mark.parametrize(
    ("label", "mode"),
    [(GENERATE, GenerationMode.NEGATIVE), *((label, GenerationMode.POSITIVE) for label in OPERATIONS)],
)
def test_what_the_description_allows_or_forbids_is_answered_as_it_says(
    stage: HttpStage, label: str, mode: GenerationMode
) -> None:
    described = schemathesis.openapi.from_url(f"{stage.url}/openapi.json")
    (operation,) = (found.ok() for found in described.get_all_operations() if found.ok().label == label)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def answers_as_described(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE_S)

    answers_as_described()
    assert_it_serves(stage)


def request(head: str, body: bytes = b"") -> bytes:
    """A request's bytes; `head` has its lines, the first without its version."""
    first, *rest = head.split("\n")
    return "\r\n".join([f"{first} HTTP/1.1", "host: stage", *rest, "", ""]).encode() + body


RUBBISH = {
    "noise": random.Random(0).randbytes(10_000),
    "nothing but line ends": b"\r\n" * 1000,
    "a TLS hello": bytes.fromhex("16030100a5010000a1") + bytes(160),
    "HTTP/0.9": b"GET /livez\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an endless line": b"GET /" + b"a" * 200_000,
    "an endless header": b"GET / HTTP/1.1\r\na: " + b"b" * 200_000,
    "ten thousand headers": b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(10_000)),
    "a header with NUL": b"GET /livez HTTP/1.1\r\nhost: a\x00b\r\n\r\n",
    "a folded header": b"GET /livez HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two lengths": request(f"POST {IMAGES_URL}\ncontent-length: 2\ncontent-length: 3", b"{}"),
    "a negative length": request(f"POST {IMAGES_URL}\ncontent-length: -1"),
    "a length of many digits": request(f"POST {IMAGES_URL}\ncontent-length: " + "9" * 10_000),
    "length and chunks": request(
        f"POST {IMAGES_URL}\ncontent-length: 5\ntransfer-encoding: chunked", b"0\r\n\r\n"
    ),
    "a chunk of a wrong length": request(f"POST {IMAGES_URL}\ntransfer-encoding: chunked", b"zz\r\n"),
    "a chunk of a huge length": request(
        f"POST {IMAGES_URL}\ntransfer-encoding: chunked", b"f" * 100 + b"\r\n"
    ),
    "many tiny chunks": request(f"POST {IMAGES_URL}\ntransfer-encoding: chunked", b"1\r\na\r\n" * 50_000),
    "half a body": request(
        f"POST {IMAGES_URL}\ncontent-type: application/json\ncontent-length: 99", b'{"prompt"'
    ),
    "invalid UTF-8": request(
        f"POST {IMAGES_URL}\ncontent-type: application/json\ncontent-length: 4", b"\xff\xfe\xc0\x80"
    ),
    "an encoded body": request(
        f"POST {IMAGES_URL}\ncontent-type: application/json\ncontent-encoding: gzip\ncontent-length: 2", b"{}"
    ),
    "an odd kind": request(f"POST {IMAGES_URL}\ncontent-type: \x80/json; charset=\ncontent-length: 2", b"{}"),
    "an upgrade": request("GET /livez\nconnection: upgrade\nupgrade: websocket\nsec-websocket-version: 13"),
    "a tunnel": request("CONNECT stage:443"),
    "a path of escapes": request("GET /%00%ff%2e%2e%2f%2e%2e%2fetc/passwd"),
    "a whole URL as a path": request("GET http://elsewhere/v1/models"),
    "a star": request("OPTIONS *"),
}


@pytest.mark.parametrize("sent", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_is_no_error_of_the_stage_and_it_serves_on(stage: HttpStage, sent: bytes) -> None:
    answer = exchange(stage, sent)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in answer
    assert b"Traceback" not in answer
    assert_it_serves(stage)


def test_a_request_that_is_cut_anywhere_is_no_error_of_the_stage(stage: HttpStage) -> None:
    whole = request(
        f"POST {IMAGES_URL}\ncontent-type: application/json\ncontent-length: 15", b'{"prompt": "a"}'
    )
    for length in range(1, len(whole), 7):
        assert exchange(stage, whole[:length]) == b""
    assert_it_serves(stage)


def test_bytes_flipped_anywhere_are_no_error_of_the_stage(stage: HttpStage) -> None:
    whole = request(
        f"POST {IMAGES_URL}\ncontent-type: application/json\ncontent-length: 15", b'{"prompt": "a"}'
    )
    chance = random.Random(0)
    for _ in range(200):
        flipped = bytearray(whole)
        for place in chance.sample(range(len(whole)), 3):
            flipped[place] = chance.randrange(256)
        assert b"HTTP/1.1 5" not in exchange(stage, bytes(flipped))
    assert_it_serves(stage)


def exchange(stage: HttpStage, sent: bytes) -> bytes:
    """What comes back before the connection ends; nothing more is sent after `sent`."""
    with socket.create_connection(stage.address, timeout=PATIENCE_S) as connection:
        answer = b""
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:
            pass  # it had heard enough
        return answer


def assert_it_serves(stage: HttpStage) -> None:
    """A request of any client is served, and nothing is left of it."""
    with stage.client() as client:
        assert client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 200
    stage.wait_idle()
