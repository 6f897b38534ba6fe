"""The door, and what a drain waits for."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from stage_runtime.core.errors import NotAdmitting
from stage_runtime.server.http.drain import Door, Drain, UnderWay


@pytest.mark.parametrize(
    "doors",
    [[Door.CLOSING, Door.CLOSED], [Door.CLOSED], [Door.CLOSED, Door.CLOSING], [Door.CLOSED, Door.OPEN]],
)
def test_a_door_only_ever_closes(doors: list[Door]) -> None:
    drain = Drain()
    for door in doors:
        drain.move(door)
    assert drain.door is Door.CLOSED


def test_only_a_closed_door_refuses() -> None:
    drain = Drain()
    drain.check()
    drain.move(Door.CLOSING)
    drain.check()
    drain.move(Door.CLOSED)
    with pytest.raises(NotAdmitting):
        drain.check()


@pytest.mark.parametrize(("method", "counted"), [("POST", True), ("GET", False)])
def test_a_drain_waits_for_what_was_asked_for_and_for_no_probe(method: str, counted: bool) -> None:
    async def run() -> tuple[bool, bool]:
        drain, go_on = Drain(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await go_on.wait()

        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            raise AssertionError

        answering = asyncio.create_task(
            UnderWay(app, drain)({"type": "http", "method": method}, receive, send)
        )
        idle = asyncio.create_task(drain.idle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = idle.done()
        go_on.set()
        await answering
        await idle
        return before, idle.done()

    assert asyncio.run(run()) == (not counted, True)


def test_an_answer_that_fails_is_not_waited_for_any_longer() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ConnectionError

    async def run() -> None:
        drain = Drain()

        async def nothing(*_: object) -> Message:
            raise AssertionError

        with pytest.raises(ConnectionError):
            await UnderWay(broken, drain)({"type": "http", "method": "POST"}, nothing, nothing)
        await drain.idle()

    asyncio.run(run())
