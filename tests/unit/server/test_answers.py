"""Answers sent in pieces and given up when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest
from starlette.types import Message

from stage_runtime.server.http.bodies import (
    COMMENT,
    HALF_CLOSED,
    PIECE_BYTES,
    SILENCE_S,
    EventStream,
    Pieces,
    event,
    unless_gone,
)


class Client:
    """The other end: it reads everything, and leaves when told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        """Nothing until it leaves."""
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take it."""
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(message.get("body", b"") for message in self.messages)


def test_a_large_answer_goes_out_in_pieces_under_its_whole_length() -> None:
    async def run() -> Client:
        client = Client()
        await Pieces([b"a" * (2 * PIECE_BYTES + 1), b"", b"b"])({"type": "http"}, client.receive, client.send)
        return client

    client = asyncio.run(run())
    assert client.body == b"a" * (2 * PIECE_BYTES + 1) + b"b"
    assert max(len(message.get("body", b"")) for message in client.messages) == PIECE_BYTES
    assert dict(client.messages[0]["headers"])[b"content-length"] == str(2 * PIECE_BYTES + 2).encode()
    assert client.messages[-1].get("more_body", False) is False


def test_an_event_is_its_name_and_one_line_of_json() -> None:
    text = b"".join(event("image", {"index": 1, "text": "two\nlines"}, b"QUJD")).decode()
    name, data, end, rest = text.split("\n")
    assert (name, end, rest) == ("event: image", "", "")
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "image",
        "index": 1,
        "text": "two\nlines",
        "b64_json": "QUJD",
    }


def test_work_is_done_when_the_client_stays() -> None:
    async def run() -> int | None:
        async def work() -> int:
            return 7

        return await unless_gone(Client().receive, work())

    assert asyncio.run(run()) == 7


def test_work_is_cancelled_and_awaited_when_the_client_leaves() -> None:
    async def run() -> list[str]:
        client, told = Client(), []

        async def work() -> None:
            try:
                client.left.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                told.append("cleaned up")

        told.append(str(await unless_gone(client.receive, work())))
        return told

    assert asyncio.run(run()) == ["cleaned up", "None"]


def test_an_error_of_the_work_is_raised() -> None:
    async def run() -> None:
        async def work() -> None:
            raise ValueError("wrong")

        await unless_gone(Client().receive, work())

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(run())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_is_closed_whether_its_client_stays_or_leaves(leaves: bool) -> None:
    async def run() -> tuple[bytes, list[str]]:
        client, closed = Client(), []

        async def events() -> AsyncGenerator[Sequence[bytes], None]:
            try:
                yield [b"one\n\n"]
                if leaves:
                    client.left.set()
                    await asyncio.Event().wait()
                yield [b"two\n\n"]
            finally:
                closed.append("events")

        async def close() -> None:
            closed.append("work")

        await EventStream(events(), close)({"type": "http"}, client.receive, client.send)
        return client.body, closed

    body, closed = asyncio.run(run())
    assert closed == ["events", "work"]
    assert body == (b"one\n\n" if leaves else b"one\n\ntwo\n\ndata: [DONE]\n\n")


def test_a_silent_stream_says_between_events_that_it_is_there() -> None:
    async def run() -> bytes:
        client = Client()
        commented = asyncio.Event()

        async def events() -> AsyncGenerator[Sequence[bytes], None]:
            for text in (b"one\n\n", b"two\n\n"):
                commented.clear()
                await commented.wait()
                yield [text[:2], text[2:]]

        async def send(message: Message) -> None:
            await client.send(message)
            if message.get("body") == COMMENT:
                commented.set()

        async def close() -> None:
            pass

        await EventStream(events(), close, silence_s=0.001)({"type": "http"}, client.receive, send)
        return client.body

    body = asyncio.run(run())
    assert body.replace(COMMENT, b"") == b"one\n\ntwo\n\ndata: [DONE]\n\n"
    assert body.startswith(COMMENT)
    assert body.index(COMMENT, len(COMMENT) + 1) < body.index(b"two")


def test_a_stream_is_never_silent_for_as_long_as_proxies_bear() -> None:
    assert SILENCE_S < 15


def test_a_client_that_says_no_more_is_asked_often_whether_it_reads_and_gets_every_event() -> None:
    async def run() -> bytes:
        client, half_closed, commented = Client(), asyncio.Event(), asyncio.Event()

        async def events() -> AsyncGenerator[Sequence[bytes], None]:
            yield [b"one\n\n"]
            half_closed.set()
            await commented.wait()
            yield [b"two\n\n"]

        async def send(message: Message) -> None:
            await client.send(message)
            if message.get("body") == COMMENT:
                commented.set()

        async def close() -> None:
            pass

        scope = {"type": "http", "state": {HALF_CLOSED: half_closed}}
        await EventStream(events(), close)(scope, client.receive, send)
        return client.body

    assert asyncio.run(run()).replace(COMMENT, b"") == b"one\n\ntwo\n\ndata: [DONE]\n\n"
