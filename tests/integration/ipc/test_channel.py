"""An engine and its ranks over real sockets on one machine."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from stage_runtime.core.control import Health, Outstanding
from stage_runtime.core.errors import EngineDeadError
from stage_runtime.ipc.channel import MAX_DRAIN, BadReply, EngineChannel, PeerGone
from stage_runtime.ipc.codec import BadMessage, encode
from stage_runtime.ipc.messages import Answered, Ask, Hello, Reply, Starting, Stop
from stage_runtime.ipc.rank_channel import RankChannel
from support.stage_process import until

LONG_S = 30.0
"""A wait that is over much earlier, or the test fails."""

Connect = Callable[..., RankChannel]


@pytest.fixture
def here() -> Iterator[Path]:
    """An empty folder, with a name that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def engine(here: Path) -> Iterator[EngineChannel]:
    channel = EngineChannel(here)
    yield channel
    channel.close()


@pytest.fixture
def connect(engine: EngineChannel) -> Iterator[Connect]:
    """Connects a rank, and waits until the engine knows it."""
    with ExitStack() as stack:

        def connect(rank: int, lane: str = "") -> RankChannel:
            channel = RankChannel(engine.address, rank, lane=lane)
            stack.callback(channel.close)
            channel.send(hello(rank))
            assert engine.receive(LONG_S) == [hello(rank)]
            return channel

        yield connect


def hello(rank: int) -> Hello:
    return Hello(rank=rank, pid=os.getpid(), epoch=0, digest="d")


def socket_file(engine: EngineChannel) -> Path:
    return Path(engine.address.removeprefix("ipc://"))


def received(engine: EngineChannel, count: int) -> list[Reply | BadReply]:
    """The next `count` replies."""
    replies: list[Reply | BadReply] = []
    until_s = time.monotonic() + LONG_S
    while len(replies) < count:
        assert time.monotonic() < until_s, f"only {len(replies)} of {count} came"
        replies += engine.receive(1.0)
    return replies


def send_until_refused(engine: EngineChannel) -> None:
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        engine.send([0], Ask(1, Health()))


# Talk


def test_a_command_reaches_every_rank_and_each_answers(engine: EngineChannel, connect: Connect) -> None:
    ranks = [connect(0), connect(1)]
    engine.send([0, 1], Ask(1, Health()))
    for number, rank in enumerate(ranks):
        assert rank.receive(LONG_S) == Ask(1, Health())
        rank.send(Answered(rank=number, call_id=1, value=[number, "well"]))
    answers = received(engine, 2)
    assert sorted(a.value for a in answers if isinstance(a, Answered)) == [[0, "well"], [1, "well"]]


def test_commands_come_in_the_order_in_which_they_were_sent(engine: EngineChannel, connect: Connect) -> None:
    rank = connect(0)
    for call in range(500):
        engine.send([0], Ask(call, Outstanding()))
    assert [rank.receive(LONG_S) for _ in range(500)] == [Ask(call, Outstanding()) for call in range(500)]
    assert not rank.pending()


def test_a_command_goes_to_the_ranks_that_are_named(engine: EngineChannel, connect: Connect) -> None:
    first, second = connect(0), connect(1)
    engine.send([1], Stop())
    assert second.receive(LONG_S) == Stop()
    assert not first.pending()


def test_a_lane_talks_for_its_rank_and_hears_nothing(engine: EngineChannel, connect: Connect) -> None:
    main, lane = connect(3), connect(3, "pack")
    lane.send(Starting(3, "packing"))
    assert engine.receive(LONG_S) == [Starting(3, "packing")]
    engine.send([3], Stop())
    assert main.receive(LONG_S) == Stop()
    assert lane.receive(0.0) is None


def test_a_rank_sees_that_a_command_is_there_without_taking_it(
    engine: EngineChannel, connect: Connect
) -> None:
    rank = connect(0)
    assert not rank.pending()
    engine.send([0], Stop())
    until_s = time.monotonic() + LONG_S
    while not rank.pending():
        assert time.monotonic() < until_s
    assert rank.pending()
    assert rank.receive(0.0) == Stop()


def test_a_rank_waits_no_longer_than_it_was_told(connect: Connect) -> None:
    assert connect(0).receive(0.01) is None


def test_a_flood_is_taken_in_portions(engine: EngineChannel, connect: Connect) -> None:
    rank = connect(0)
    for call in range(MAX_DRAIN + 10):
        rank.send(Answered(rank=0, call_id=call))
    replies: list[Reply | BadReply] = []
    while len(replies) < MAX_DRAIN + 10:
        some = engine.receive(LONG_S)
        assert 0 < len(some) <= MAX_DRAIN
        replies += some
    assert [a.call_id for a in replies if isinstance(a, Answered)] == list(range(MAX_DRAIN + 10))


# What ends a wait


def test_a_wake_from_another_thread_ends_a_wait(engine: EngineChannel) -> None:
    waker = threading.Timer(0.02, engine.wake)
    waker.start()
    assert engine.receive(LONG_S) == []
    waker.join()


def test_a_wake_before_the_wait_is_not_lost_and_counts_once(engine: EngineChannel) -> None:
    engine.wake()
    engine.wake()
    began_s = time.monotonic()
    assert engine.receive(LONG_S) == []
    assert time.monotonic() - began_s < LONG_S
    assert engine.receive(0.01) == []


def test_a_wake_from_a_signal_handler_ends_a_wait(engine: EngineChannel) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: engine.wake())
    sender = threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGUSR1])
    try:
        sender.start()
        assert engine.receive(LONG_S) == []
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_end_of_a_watched_process_ends_every_wait(engine: EngineChannel) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    engine.watch(pidfd)
    assert engine.receive(0.0) == []
    process.kill()
    for _ in range(2):
        assert engine.receive(LONG_S) == []
    os.close(pidfd)
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


# Who can't be reached


def test_an_unknown_rank_is_told_after_the_others_have_the_command(
    engine: EngineChannel, connect: Connect
) -> None:
    rank = connect(1)
    with pytest.raises(PeerGone, match="rank 0 can't be reached: it is not connected") as gone:
        engine.send([0, 1, 2], Stop())
    assert gone.value.rank == 0
    assert rank.receive(LONG_S) == Stop()


def test_a_rank_that_closed_can_not_be_reached(engine: EngineChannel, connect: Connect) -> None:
    rank = connect(0)
    rank.close()
    rank.close()
    with pytest.raises(PeerGone, match="rank 0"):
        send_until_refused(engine)


def test_a_rank_that_never_reads_is_unreachable_before_it_blocks_the_engine(
    engine: EngineChannel, connect: Connect
) -> None:
    connect(0)
    with pytest.raises(PeerGone, match="it has not read for too long") as gone:
        send_until_refused(engine)
    assert gone.value.rank == 0


def test_a_rank_hears_that_its_engine_is_gone_after_all_that_it_had_said(
    engine: EngineChannel, connect: Connect
) -> None:
    rank = connect(0)
    engine.send([0], Ask(1, Health()))
    engine.send([0], Stop())
    engine.close()
    assert [rank.receive(LONG_S) for _ in range(3)] == [Ask(1, Health()), Stop(), None]
    assert rank.gone
    assert rank.receive(None) is None


def test_nobody_listens_where_no_engine_is(here: Path) -> None:
    with pytest.raises(EngineDeadError, match="no engine listens"):
        RankChannel(f"ipc://{here}/nobody", 0)


# What can't be understood


@pytest.mark.parametrize(
    ("identity", "parts", "rank", "why"),
    [
        (b"0", [b"rubbish"], 0, "no reply in 7 bytes"),
        (b"0", [b""], 0, "no reply in 0 bytes"),
        (b"0", [encode(Stop())], 0, "no reply in"),
        (b"0", [encode(Starting(0, "x")), b"more"], 0, "a message of 2 parts"),
        (b"0", [encode(Starting(1, "x"))], 0, "in the name of rank 1"),
        (b"1/pack", [encode(Starting(0, "x"))], 1, "in the name of rank 0"),
        (b"boss", [encode(Starting(0, "x"))], None, "b'boss', which is no rank"),
        (b"-1", [encode(Starting(0, "x"))], None, "no rank"),
        (b"", [encode(Starting(0, "x"))], None, "no rank"),
    ],
)
def test_what_is_no_reply_of_its_rank_is_told_and_the_next_one_is_read(
    engine: EngineChannel, connect: Connect, identity: bytes, parts: list[bytes], rank: int | None, why: str
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        if identity:
            peer.identity = identity
        peer.connect(engine.address)
        peer.send_multipart(parts)
        (bad,) = engine.receive(LONG_S)
        assert isinstance(bad, BadReply)
        assert bad.rank == rank
        assert why in bad.why
        connect(7)


def test_a_command_that_can_not_be_written_is_sent_to_nobody(engine: EngineChannel, connect: Connect) -> None:
    rank = connect(0)
    with pytest.raises(BadMessage):
        engine.send([0], Ask(2**70, Health()))
    assert not rank.pending()


# What is left


def test_the_socket_lies_where_nobody_else_may_look(engine: EngineChannel) -> None:
    folder = socket_file(engine).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_sealed_channel_has_no_file_and_still_talks(
    engine: EngineChannel, connect: Connect, here: Path
) -> None:
    rank = connect(0)
    engine.seal()
    engine.seal()
    assert list(here.iterdir()) == []
    engine.send([0], Stop())
    assert rank.receive(LONG_S) == Stop()
    rank.send(Starting(0, "ending"))
    assert engine.receive(LONG_S) == [Starting(0, "ending")]
    with pytest.raises(EngineDeadError, match="no engine listens"):
        RankChannel(engine.address, 1)


def test_a_channel_that_was_never_sealed_leaves_no_file(engine: EngineChannel, here: Path) -> None:
    engine.close()
    engine.close()
    assert list(here.iterdir()) == []


def test_a_channel_that_can_not_listen_leaves_no_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(zmq.ZMQError, match="longer than 107"):
        EngineChannel(deep)
    assert list(deep.iterdir()) == []


def test_a_closed_channel_leaves_no_thread_and_no_descriptor(here: Path) -> None:
    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = counts()
    for _ in range(3):
        channel = EngineChannel(here)
        rank = RankChannel(channel.address, 0)
        rank.send(hello(0))
        channel.receive(LONG_S)
        rank.close()
        channel.close()
        del channel
    # A thread that was joined, here or in the test before, may take the system a moment more.
    until(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)), "all is gone", LONG_S)


def test_a_late_wake_of_a_closed_channel_does_no_harm(engine: EngineChannel) -> None:
    engine.close()
    engine.wake()


def test_closing_does_not_wait_for_a_rank_that_does_not_read(engine: EngineChannel, connect: Connect) -> None:
    rank = connect(0)
    for call in range(900):
        engine.send([0], Ask(call, Health()))
    began_s = time.monotonic()
    engine.close()
    assert time.monotonic() - began_s < LONG_S
    assert rank.receive(LONG_S) == Ask(0, Health())
