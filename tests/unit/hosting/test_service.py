"""The child's side of the line, with a client that reads when it likes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from stage_runtime.core.outcome import Completed, Progressed
from stage_runtime.hosting.line import IN_FLIGHT, Line
from stage_runtime.hosting.service import Service
from stage_runtime.hosting.wire import Accepted, Submit, Tells, Told, decode_tell, encode
from stage_runtime.ipc.bell import Bell
from stage_runtime.ipc.hatch import Hatch
from stage_runtime.ipc.shm import Receiver, Sender
from support.builders import EngineBuilder, RequestBuilder, a_request
from support.http_stage import PictureExecutor
from support.scripted import PATIENCE_S


class Pair:
    """Both ends of a line in one thread."""

    def __init__(self) -> None:
        self.client = Line.listen(Bell())
        self.child = Line.connect(self.client.address)
        # What is sent before they are connected waits until its sender turns to the line again.
        self.child.send(b"here")
        assert self.client.receive(PATIENCE_S) == [b"here"]

    def heard(self, service: Service, last: type) -> list[Tells]:
        """What the client hears until an outcome of this kind comes."""
        tells: list[Tells] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            service.turn()
            tells += map(decode_tell, self.client.receive(0.0))
            if any(isinstance(tell, Told) and isinstance(tell.news[-1].outcome, last) for tell in tells):
                return tells
        raise AssertionError(f"no {last.__name__} came")

    def close(self) -> None:
        self.child.close(0.0)
        self.client.close(0.0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def hatch() -> Iterator[Hatch]:
    with closing(Receiver()) as receiver, closing(receiver.hatch()) as hatch:
        yield hatch


@pytest.fixture
def sender(hatch: Hatch) -> Iterator[Sender]:
    with closing(Sender(hatch, 0, patience_s=0.0)) as sender:
        yield sender


def test_for_a_client_that_does_not_read_only_the_latest_progress_is_kept(pair: Pair, sender: Sender) -> None:
    steps = 20 * IN_FLIGHT
    with EngineBuilder().started() as (engine, executor):
        service = Service(pair.child, engine, sender)
        pair.client.send(encode(Submit(1, (a_request("a", steps),))))
        deadline_s = (
            time.monotonic() + 5 * PATIENCE_S
        )  # two threads that never wait share one interpreter here
        while len(executor.steps.get("a", ())) < steps:
            assert time.monotonic() < deadline_s
            service.turn()
        tells = pair.heard(service, Completed)
    news = [one.outcome for tell in tells if isinstance(tell, Told) for one in tell.news]
    progress = [outcome.step for outcome in news if isinstance(outcome, Progressed)]
    assert any(isinstance(tell, Accepted) for tell in tells)
    assert progress == sorted(progress)
    assert len(tells) < 6 * IN_FLIGHT
    assert [type(outcome) for outcome in news].count(Completed) == 1


def test_a_picture_that_finds_no_shared_memory_travels_in_its_message(pair: Pair, hatch: Hatch) -> None:
    full = Sender(hatch, 0, patience_s=0.0, budget_bytes=1)
    request = RequestBuilder("a").size(200, 200).build()
    engine = EngineBuilder().executor(PictureExecutor).build()
    engine.start()
    engine.wait_ready(PATIENCE_S)
    with closing(engine):
        service = Service(pair.child, engine, full)
        pair.client.send(encode(Submit(1, (request,))))
        tells = pair.heard(service, Completed)
    (end,) = [
        one
        for tell in tells
        if isinstance(tell, Told)
        for one in tell.news
        if isinstance(one.outcome, Completed)
    ]
    assert end.parcel is None
    assert isinstance(end.outcome, Completed)
    assert len(end.outcome.output.data) == 200 * 200 * 3
