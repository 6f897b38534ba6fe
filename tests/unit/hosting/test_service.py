"""The child's side of the line, with a client that reads when it likes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from stage_runtime.core.outcome import Completed, Progressed
from stage_runtime.hosting.messages import (
    Answered,
    Event,
    Hello,
    Submit,
    Tells,
    Told,
    decode_ask,
    decode_tell,
)
from stage_runtime.hosting.service import Service
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Receiver, Sender
from support.builders import EngineBuilder, RequestBuilder, a_request
from support.http_stage import PictureExecutor
from support.scripted import PATIENCE_S

HIGH_WATER = 2_000
"""Messages that two sockets hold for a peer that doesn't read."""


class Pair:
    """Both ends of a connection in one thread."""

    def __init__(self) -> None:
        self.client = EngineChannel(decode=decode_tell)
        self.child = RankChannel(self.client.address, 0, decode=decode_ask)
        self.child.send(Hello())
        assert self.client.receive(PATIENCE_S) == [Hello()]

    def heard(self, service: Service, last: type) -> list[Tells]:
        """What the client hears until an outcome of this kind comes."""
        tells: list[Tells] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            service.turn()
            tells += self.client.receive(0.0)
            if any(isinstance(event.outcome, last) for event in events(tells)):
                return tells
        raise AssertionError(f"no {last.__name__} came")

    def close(self) -> None:
        self.child.close()
        self.client.close()


def events(tells: list[Tells]) -> list[Event]:
    return [event for tell in tells if isinstance(tell, Told) for event in tell.events]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def file_pipe() -> Iterator[FilePipe]:
    with closing(Receiver()) as receiver, closing(receiver.file_pipe()) as file_pipe:
        yield file_pipe


@pytest.fixture
def sender(file_pipe: FilePipe) -> Iterator[Sender]:
    with closing(Sender(file_pipe, 0, patience_s=0.0)) as sender:
        yield sender


def test_for_a_client_that_does_not_read_only_the_latest_progress_is_kept(pair: Pair, sender: Sender) -> None:
    steps = 4 * HIGH_WATER
    with EngineBuilder().started() as (engine, executor):
        service = Service(pair.child, engine, sender)
        pair.client.send([0], Submit(1, (a_request("a", steps),)))
        deadline_s = (
            time.monotonic() + 5 * PATIENCE_S
        )  # two threads that never wait share one interpreter here
        while len(executor.steps.get("a", ())) < steps:
            assert time.monotonic() < deadline_s
            service.turn()
        tells = pair.heard(service, Completed)
    news = [event.outcome for event in events(tells)]
    progress = [outcome.step for outcome in news if isinstance(outcome, Progressed)]
    assert Answered(1) in tells
    assert progress == sorted(progress)
    assert len(tells) < 2 * HIGH_WATER
    assert [type(outcome) for outcome in news].count(Completed) == 1


def test_a_picture_that_finds_no_shared_memory_travels_in_its_message(
    pair: Pair, file_pipe: FilePipe
) -> None:
    full = Sender(file_pipe, 0, patience_s=0.0, budget_bytes=1)
    request = RequestBuilder("a").size(200, 200).build()
    engine = EngineBuilder().executor(PictureExecutor).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    with closing(engine):
        service = Service(pair.child, engine, full)
        pair.client.send([0], Submit(1, (request,)))
        tells = pair.heard(service, Completed)
    (end,) = [event for event in events(tells) if isinstance(event.outcome, Completed)]
    assert end.parcel is None
    assert isinstance(end.outcome, Completed)
    assert len(end.outcome.output.data) == 200 * 200 * 3
