"""An agent and its rank, both real, and an engine of which only the channel is there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from stage_api.config import StageConfig
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import EngineDeadError, EngineHung, RendezvousTimeout
from stage_runtime.executor.agent import Agent
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.identity import life_of
from stage_runtime.ipc.keys import load_server
from stage_runtime.ipc.messages import Attending, Dying, Ended, Frozen, Hello, Meet, Reply, Stop
from support.far_pod import key_folder, pod_environ, two_pods
from support.stage_process import PROMPT_S, environment, until

EPOCH = 5
R = TypeVar("R", bound=Reply)


class Engine:
    """The engine's end, and whom it has heard of."""

    def __init__(self, config: StageConfig, keys: Path) -> None:
        self.left: list[int] = []
        self.heard: list[Reply] = []
        self.channel = EngineChannel(
            listen=("127.0.0.1", 0),
            keys=load_server(keys),
            life=life_of(EPOCH, config.topology().digest),
            on_gone=self.left.append,
        )
        assert self.channel.tcp_address is not None
        self.port = int(self.channel.tcp_address.rpartition(":")[2])

    def wait_for(self, kind: type[R]) -> R:
        """The next message of this kind."""
        until_s = time.monotonic() + PROMPT_S
        while time.monotonic() < until_s:
            for at, reply in enumerate(self.heard):
                if isinstance(reply, kind):
                    del self.heard[: at + 1]
                    return reply
            for reply in self.channel.receive(1.0):
                assert isinstance(reply, Reply), reply
                self.heard.append(reply)
        raise AssertionError(f"no {kind.__name__} but {self.heard}")

    def all_heard(self) -> list[Reply]:
        """What is said while nobody waits for more than half a second."""
        while replies := self.channel.receive(0.5):
            self.heard += [reply for reply in replies if isinstance(reply, Reply)]
        return self.heard


@pytest.fixture
def config() -> StageConfig:
    return two_pods(data=2, startup_s=30)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return key_folder(tmp_path / "keys")


@pytest.fixture
def engine(config: StageConfig, keys: Path) -> Iterator[Engine]:
    engine = Engine(config, keys)
    yield engine
    engine.channel.close()


Start = Callable[..., tuple[Agent, Future[None]]]


@pytest.fixture
def start(config: StageConfig, keys: Path, engine: Engine) -> Iterator[Start]:
    """Starts an agent; what it ends with is the future's."""
    with ExitStack() as stack:

        def begin(**differs: object) -> tuple[Agent, Future[None]]:
            given: dict[str, object] = {"epoch": EPOCH, "keys": keys, "config": config} | differs
            its_config, its_keys, epoch = given["config"], given["keys"], given["epoch"]
            assert isinstance(its_config, StageConfig)
            assert isinstance(its_keys, Path)
            assert isinstance(epoch, int)
            more = pod_environ(1, master="127.0.0.1", keys=its_keys, epoch=epoch, port=engine.port)
            agent = Agent(its_config, pod=1, epoch=epoch, environ=environment(**more))
            pool = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(agent.stop, 0.0)
            return agent, pool.submit(agent.run)

        yield begin


def at_work(engine: Engine, start: Start) -> tuple[Agent, Future[None], Hello]:
    """An agent whose rank has said hello."""
    agent, end = start()
    assert engine.wait_for(Attending) == Attending(1)
    return agent, end, engine.wait_for(Hello)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_ranks_that_the_engine_stops_are_an_orderly_end(engine: Engine, start: Start) -> None:
    agent, end, hello = at_work(engine, start)
    assert (hello.rank, hello.epoch) == (1, EPOCH)
    assert agent.attends
    engine.channel.send([1], Stop())
    assert end.result(PROMPT_S) is None
    assert agent.ended.is_set()
    assert is_gone(hello.pid)


def test_the_engine_is_told_how_a_rank_ended_and_the_agent_ends_with_it(engine: Engine, start: Start) -> None:
    _, end, hello = at_work(engine, start)
    os.kill(hello.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="rank 1 was killed by SIGKILL") as death:
        end.result(PROMPT_S)
    assert death.value.exit_code is ExitCode.RANK_DIED
    assert engine.wait_for(Ended) == Ended(rank=1, who=1, code=-signal.SIGKILL)
    until(lambda: engine.left, "the end of its connections is told without anybody receiving", PROMPT_S)


def test_the_engine_is_told_when_a_rank_is_stopped_and_when_it_runs_again(
    engine: Engine, start: Start
) -> None:
    _, _, hello = at_work(engine, start)
    for number, is_frozen in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        os.kill(hello.pid, number)
        assert engine.wait_for(Frozen) == Frozen(rank=1, who=1, is_frozen=is_frozen)


def test_an_engine_that_is_gone_while_a_rank_is_stopped_is_a_hang(engine: Engine, start: Start) -> None:
    _, end, hello = at_work(engine, start)
    os.kill(hello.pid, signal.SIGSTOP)
    engine.wait_for(Frozen)
    engine.channel.close()
    with pytest.raises(EngineHung, match="rank 1 is stopped") as death:
        end.result(PROMPT_S)
    assert death.value.exit_code is ExitCode.HANG
    assert is_gone(hello.pid)


def test_an_agent_and_its_ranks_end_with_the_engine(engine: Engine, start: Start) -> None:
    _, end, hello = at_work(engine, start)
    engine.channel.close()
    with pytest.raises(EngineDeadError, match="the engine, in the replica's first pod, is gone"):
        end.result(PROMPT_S)
    assert is_gone(hello.pid)


def test_ranks_that_nobody_stops_are_ended_when_the_grace_is_over(engine: Engine, start: Start) -> None:
    agent, end, hello = at_work(engine, start)
    agent.stop(0.2)
    assert end.result(PROMPT_S) is None
    assert is_gone(hello.pid)


def test_a_rank_that_dies_of_the_engine_s_end_in_a_drain_is_an_orderly_end(
    engine: Engine, start: Start
) -> None:
    agent, end, _ = at_work(engine, start)
    agent.stop(PROMPT_S)
    engine.channel.close()
    assert end.result(PROMPT_S) is None


@pytest.mark.parametrize("differs", ["epoch", "topology"])
def test_a_pod_of_another_life_is_refused_and_harms_nobody(
    engine: Engine, start: Start, differs: str
) -> None:
    other = {"epoch": EPOCH - 1} if differs == "epoch" else {"config": two_pods(cfg=2)}
    _, end = start(**other)
    end.add_done_callback(lambda _: engine.channel.wake())
    until(lambda: [engine.channel.receive(0.1), end.done()][1], "its end", PROMPT_S)
    with pytest.raises(EngineDeadError, match="refuses this rank: it is of life") as death:
        end.result(0)
    assert death.value.exit_code is ExitCode.RANK_DIED
    _, _, hello = at_work(engine, start)
    assert hello.rank == 1
    assert engine.left == []


def test_a_pod_with_other_keys_is_refused_and_harms_nobody(
    engine: Engine, start: Start, tmp_path: Path
) -> None:
    _, end = start(keys=key_folder(tmp_path / "others"))
    with pytest.raises(EngineDeadError, match="has other keys than this rank"):
        end.result(PROMPT_S)
    at_work(engine, start)
    assert engine.all_heard() == []
    assert engine.left == []


def test_an_engine_that_does_not_come_up_is_a_rendezvous_that_failed(engine: Engine, start: Start) -> None:
    engine.channel.close()
    _, end = start(config=two_pods(data=2, startup_s=1))
    with pytest.raises(RendezvousTimeout, match=rf"no engine at tcp://127.0.0.1:{engine.port} within 1 s"):
        end.result(PROMPT_S)


def test_last_words_of_a_rank_are_the_engine_s(engine: Engine, start: Start) -> None:
    """The rank is sent what it can't understand, and says so before its agent tells its exit code."""
    _, end, _ = at_work(engine, start)
    engine.channel.send([1], Meet(("127.0.0.1", 1)))
    words = engine.wait_for(Dying)
    assert words.error.message == "a Meet came, expected a Setup"
    assert engine.wait_for(Ended) == Ended(rank=1, who=1, code=70)
    with pytest.raises(EngineDeadError, match="rank 1 exited with code 70"):
        end.result(PROMPT_S)
