"""What every request passes before the application sees it, driven as ASGI without a socket."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stage_runtime.server.http.limits import BodyLimit, LastResort, RequestIds


@dataclass
class Exchange:
    """What an application was given and what it sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raised: Exception | None = None

    @property
    def code(self) -> object:
        """Code of the error envelope."""
        return json.loads(self.body)["error"]["code"]


def exchange(
    app: ASGIApp,
    body: Sequence[bytes] = (b"",),
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    leaves: bool = False,
    stalls: bool = False,
) -> Exchange:
    """Send `body` in its parts, then leave, stall or wait for the answer."""
    seen = Exchange()
    parts = list(body)

    async def receive() -> Message:
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts) or leaves or stalls}
        if leaves:
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            seen.status = message["status"]
            seen.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            seen.body += message.get("body", b"")

    async def run() -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
        try:
            await app(scope, receive, send)
        except ValueError as error:
            seen.raised = error

    asyncio.run(run())
    return seen


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body, and its request id as a header."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    """Raises before its answer."""
    raise ValueError("a secret")


async def broken_in_the_middle(scope: Scope, receive: Receive, send: Send) -> None:
    """Raises in its answer."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ValueError("a secret")


# The body


@pytest.mark.parametrize("parts", [[b"12345678"], [b"1234", b"5678"], [b"1"] * 8, [b""], [b"", b"12", b""]])
def test_a_body_within_the_limit_is_handed_on_whole(parts: list[bytes]) -> None:
    assert exchange(BodyLimit(echo, max_bytes=8), parts).body == b"".join(parts)


@pytest.mark.parametrize("parts", [[b"123456789"], [b"12345678", b"9"], [b"1"] * 9])
def test_a_body_over_the_limit_is_refused_however_it_comes(parts: list[bytes]) -> None:
    refused = exchange(BodyLimit(echo, max_bytes=8), parts)
    assert (refused.status, refused.code, refused.headers["connection"]) == (413, "body_too_large", "close")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"1" + b"0" * 5000)],
        [(b"content-length", b"100000000")],
        [(b"content-length", b"9"), (b"expect", b"100-continue")],
    ],
)
def test_a_body_that_need_not_come_is_not_waited_for(headers: list[tuple[bytes, bytes]]) -> None:
    refused = exchange(BodyLimit(echo, max_bytes=8), [], headers=headers, stalls=True)
    assert (refused.status, refused.code) == (413, "body_too_large")


def test_a_body_that_is_too_large_is_read_to_its_end_so_that_its_client_hears_of_it() -> None:
    parts = [b"0" * (1 << 20)] * 20
    refused = exchange(BodyLimit(echo), parts)
    assert (refused.status, refused.headers["connection"]) == (413, "close")


def test_a_body_without_end_is_cut_off() -> None:
    refused = exchange(BodyLimit(echo), [b"0" * (1 << 20)] * 65, stalls=True)
    assert refused.status == 413


def test_a_body_that_does_not_come_is_given_up() -> None:
    refused = exchange(BodyLimit(echo, timeout_s=0.01), [b"half"], stalls=True)
    assert (refused.status, refused.code) == (408, "body_timeout")


def test_a_client_that_leaves_within_its_body_gets_nothing() -> None:
    assert exchange(BodyLimit(echo), [b"half"], leaves=True) == Exchange()


def test_after_the_body_comes_the_disconnect() -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"whole"
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    messages: list[Message] = [{"type": "http.request", "body": b"whole"}, {"type": "http.disconnect"}]
    statuses: list[int] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        statuses.append(message["status"])

    asyncio.run(BodyLimit(waits)({"type": "http", "headers": []}, receive, send))
    assert statuses == [200]


# Request ids


@pytest.mark.parametrize("given", [b"a", b"A-1._:b", b"0" * 64])
def test_a_sane_id_is_taken_over(given: bytes) -> None:
    answer = exchange(RequestIds(echo), headers=[(b"x-request-id", given)])
    assert answer.headers["x-request-id"] == given.decode()


@pytest.mark.parametrize("given", [b"", b"-a", b"a b", b"a\xc3\xa9", b"0" * 65, b"a;b"])
def test_any_other_id_is_replaced_by_one_of_ours(given: bytes) -> None:
    answer = exchange(RequestIds(echo), headers=[(b"x-request-id", given)])
    assert answer.headers["x-request-id"].startswith("req-")


def test_ids_differ() -> None:
    ids = {exchange(RequestIds(echo)).headers["x-request-id"] for _ in range(100)}
    assert len(ids) == 100


def test_one_line_tells_each_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        exchange(RequestIds(echo))
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert (vars(line)["status"], vars(line)["method"], vars(line)["route"]) == (200, "POST", None)


# Bugs


def test_a_bug_is_a_500_that_says_nothing_of_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    answer = exchange(LastResort(broken))
    assert (answer.status, answer.code, answer.raised) == (500, "internal_error", None)
    assert b"secret" not in answer.body
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_bug_within_an_answer_cuts_it_off() -> None:
    answer = exchange(LastResort(broken_in_the_middle))
    assert (answer.status, type(answer.raised)) == (200, ValueError)
