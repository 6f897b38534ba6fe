"""Ranks on other machines come over TCP: only with the stage's keys, and never unnoticed when they go."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import pytest
import zmq

from stage_runtime.core.control import Health
from stage_runtime.core.error_codec import encoded
from stage_runtime.core.errors import DeviceLost, EngineDeadError
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.keys import ClientKeys, generate, load_client, load_server
from stage_runtime.ipc.messages import Ask, Dying, Hello, Starting
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.sockets import monitor_of

LONG_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    _write(folder, generate())
    return folder


@pytest.fixture
def here() -> Iterator[Path]:
    """An empty folder, with a name that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def gone() -> SimpleQueue[int]:
    """Ranks whose connections have ended."""
    return SimpleQueue()


@pytest.fixture
def engine(here: Path, folder: Path, gone: SimpleQueue[int]) -> Iterator[EngineChannel]:
    channel = EngineChannel(here, listen=("127.0.0.1", 0), keys=load_server(folder), on_gone=gone.put)
    yield channel
    channel.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def _connected(engine: EngineChannel, stack: ExitStack, rank: int, keys: ClientKeys | None) -> RankChannel:
    assert engine.tcp_address is not None
    channel = RankChannel(engine.tcp_address, rank, keys=keys)
    stack.callback(channel.close)
    channel.send(Hello(rank=rank, pid=1, epoch=0, digest="d"))
    assert engine.receive(LONG_S) == [Hello(rank=rank, pid=1, epoch=0, digest="d")]
    return channel


def _refused(engine: EngineChannel, keys: ClientKeys | None) -> str:
    assert engine.tcp_address is not None
    with pytest.raises(EngineDeadError) as refused:
        RankChannel(engine.tcp_address, 5, keys=keys)
    return str(refused.value)


def test_ranks_near_and_far_hear_one_command(engine: EngineChannel, stack: ExitStack, folder: Path) -> None:
    far = _connected(engine, stack, 1, load_client(folder))
    near = RankChannel(engine.address, 0)
    stack.callback(near.close)
    near.send(Starting(0, "here"))
    assert engine.receive(LONG_S) == [Starting(0, "here")]
    engine.send([0, 1], Ask(1, Health()))
    assert near.receive(LONG_S) == far.receive(LONG_S) == Ask(1, Health())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_rank_finds_an_engine_that_listens_everywhere_by_name_and_by_either_kind_of_address(
    here: Path, folder: Path, stack: ExitStack, host: str
) -> None:
    engine = EngineChannel(here, listen=("::", 0), keys=load_server(folder), on_gone=lambda rank: None)
    stack.callback(engine.close)
    assert engine.tcp_address is not None
    port = engine.tcp_address.rpartition(":")[2]
    far = RankChannel(f"tcp://{host}:{port}", 1, keys=load_client(folder))
    stack.callback(far.close)
    far.send(Starting(1, "far"))
    assert engine.receive(LONG_S) == [Starting(1, "far")]


def test_an_unknown_key_is_refused(engine: EngineChannel, folder: Path, tmp_path: Path) -> None:
    strange = generate() | {"server.pub": (folder / "server.pub").read_text()}
    _write(tmp_path / "strange", strange)
    assert "refuses this rank's keys" in _refused(engine, load_client(tmp_path / "strange"))


def test_no_key_is_refused(engine: EngineChannel, pool: ThreadPoolExecutor) -> None:
    assert "refuses this rank's keys" in _refused(engine, None)


def test_a_rank_does_not_talk_to_an_engine_with_another_key(
    engine: EngineChannel, folder: Path, tmp_path: Path
) -> None:
    mixed = {name: (folder / name).read_text() for name in ("client.key", "client.pub", "server.key")}
    _write(tmp_path / "mixed", mixed | {"server.pub": generate()["server.pub"]})
    assert "has other keys" in _refused(engine, load_client(tmp_path / "mixed"))


def test_who_is_refused_is_no_concern_of_the_ranks_that_are_there(
    engine: EngineChannel, gone: SimpleQueue[int]
) -> None:
    _refused(engine, None)
    assert engine.receive(0.01) == []
    assert gone.empty()


def test_nobody_is_let_in_once_all_are_there(engine: EngineChannel, stack: ExitStack, folder: Path) -> None:
    rank = _connected(engine, stack, 1, load_client(folder))
    engine.seal()
    assert "refuses this rank's keys" in _refused(engine, load_client(folder))
    engine.send([1], Ask(1, Health()))
    assert rank.receive(LONG_S) == Ask(1, Health())


def test_the_end_of_a_connection_is_told_with_its_rank_and_its_last_words_can_be_read(
    engine: EngineChannel, stack: ExitStack, folder: Path, gone: SimpleQueue[int]
) -> None:
    rank = _connected(engine, stack, 1, load_client(folder))
    words = Dying(rank=1, error=encoded(DeviceLost("lost")))
    rank.send(words)
    rank.close()
    assert engine.receive(LONG_S) == [words]
    assert gone.get(timeout=LONG_S) == 1


def test_a_far_rank_hears_that_its_engine_is_gone(
    engine: EngineChannel, stack: ExitStack, folder: Path
) -> None:
    rank = _connected(engine, stack, 1, load_client(folder))
    engine.close()
    assert rank.receive(LONG_S) is None
    assert rank.gone


def test_a_rank_may_come_before_its_engine(
    here: Path, pool: ThreadPoolExecutor, stack: ExitStack, folder: Path
) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
    coming = pool.submit(RankChannel, f"tcp://127.0.0.1:{port}", 1, keys=load_client(folder))
    engine = EngineChannel(here, listen=("127.0.0.1", port), keys=load_server(folder))
    stack.callback(engine.close)
    rank = coming.result(LONG_S)
    stack.callback(rank.close)
    rank.send(Starting(1, "there"))
    assert engine.receive(LONG_S) == [Starting(1, "there")]


def test_an_engine_can_close_while_its_ranks_do(pool: ThreadPoolExecutor, folder: Path) -> None:
    for _ in range(50):
        engine = EngineChannel(listen=("127.0.0.1", 0), keys=load_server(folder))
        assert engine.tcp_address is not None
        ranks = [RankChannel(engine.tcp_address, rank, keys=load_client(folder)) for rank in range(4)]
        ends = [pool.submit(rank.close) for rank in ranks]
        engine.close()
        for end in ends:
            end.result(LONG_S)


def test_news_that_nobody_reads_keep_no_socket_from_closing(pool: ThreadPoolExecutor) -> None:
    with zmq.Context() as context:
        listening = context.socket(zmq.ROUTER)
        port = listening.bind_to_random_port("tcp://127.0.0.1")
        news = monitor_of(listening, zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
        for _ in range(1_500):
            with socket.create_connection(("127.0.0.1", port)):
                pass
        pool.submit(listening.disable_monitor).result(LONG_S)
        listening.close(linger=0)
        news.close(linger=0)


@pytest.mark.parametrize("given", ["address", "keys"])
def test_an_address_without_keys_is_refused_and_keys_without_an_address(
    here: Path, folder: Path, given: str
) -> None:
    listen = ("127.0.0.1", 0) if given == "address" else None
    keys = load_server(folder) if given == "keys" else None
    with pytest.raises(ValueError, match="needs keys"):
        EngineChannel(here, listen=listen, keys=keys)


def test_an_address_that_is_taken_leaves_nothing_behind(
    engine: EngineChannel, here: Path, folder: Path
) -> None:
    before = sorted(here.iterdir())
    assert engine.tcp_address is not None
    port = int(engine.tcp_address.rpartition(":")[2])
    with pytest.raises(zmq.ZMQError, match="in use"):
        EngineChannel(here, listen=("127.0.0.1", port), keys=load_server(folder))
    assert sorted(here.iterdir()) == before
