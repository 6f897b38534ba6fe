"""The child process of a stage: signals, deaths, ends, and that nothing of it is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import Struct

from stage_api.errors import SpecError
from stage_runtime.core.control import Invoke, Outstanding
from stage_runtime.core.error_codec import decoded
from stage_runtime.core.errors import (
    EngineDeadError,
    EngineHung,
    InternalError,
    InvalidRequest,
    ModelError,
    NotAdmitting,
)
from stage_runtime.core.outcome import Completed, Terminal
from stage_runtime.engine.observer import Nobody
from stage_runtime.engine.phase import Phase
from stage_runtime.exit import exit_code_of
from stage_runtime.hosting.messages import Hello, Leaving, Setup, Stop, Submit, Told, decode_tell
from stage_runtime.hosting.remote_engine import RemoteEngine
from stage_runtime.ipc.channel import EngineChannel
from stage_runtime.ipc.shm import Receiver
from stage_runtime.processes.child import Child
from support import segments
from support.builders import RequestBuilder, a_request
from support.http_stage import wait_until
from support.scripted import PATIENCE_S
from support.stage_child import FACTORY, LOSE, STALL, Options, argument, child_engine, environment, told
from support.stage_process import PROMPT_S, is_alive


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # it is looked up once only
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Any]:
    engines: list[RemoteEngine] = []

    def start(factory: str = FACTORY, **options: Any) -> RemoteEngine:
        engines.append(child_engine(Options(**options), factory=factory))
        engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.close(1.0)


def ready(engine: RemoteEngine) -> psutil.Process:
    """Its child, once requests are admitted."""
    engine.wait_ready(PATIENCE_S)
    assert engine.pid is not None
    return psutil.Process(engine.pid)


def gone(process: psutil.Process) -> bool:
    return not is_alive(process)


# Death


def test_a_killed_child_fails_every_stream_at_once_with_a_typed_error(started: Any) -> None:
    engine = started(slots=2)
    child = ready(engine)
    streams = engine.add([told(STALL), told(STALL, "b"), a_request("c")])
    began_s = time.monotonic()
    child.kill()
    for stream in streams:
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            stream.result(PATIENCE_S)
    assert time.monotonic() - began_s < PROMPT_S
    assert engine.phase is Phase.DEAD
    assert exit_code_of(engine.death) == 70
    with pytest.raises(EngineDeadError):
        engine.add([a_request("d")])
    with pytest.raises(EngineDeadError):
        engine.check_health()


def test_a_result_that_was_sent_before_the_kill_is_delivered(started: Any) -> None:
    engine = started()
    child = ready(engine)
    (stream,) = engine.add([a_request("a", 2)])
    wait_until(lambda: stream.ended)
    child.kill()
    wait_until(lambda: engine.phase is Phase.DEAD)
    assert isinstance(stream.result(0), Completed)


def test_a_frozen_child_with_work_in_flight_is_a_hang_and_is_killed(started: Any) -> None:
    engine = started(startup_timeout_s=0.5)
    child = ready(engine)
    (stream,) = engine.add([told(STALL)])
    wait_until(lambda: engine.progress().limit_s is not None)
    child.suspend()
    with pytest.raises(EngineHung, match="no progress"):
        stream.result(PATIENCE_S)
    assert exit_code_of(engine.death) == 71
    wait_until(lambda: gone(child))


def test_an_idle_child_that_dies_is_noticed(started: Any) -> None:
    engine = started()
    child = ready(engine)
    child.kill()
    wait_until(lambda: engine.phase is Phase.DEAD)
    assert exit_code_of(engine.death) == 70


def test_whoever_asked_is_told_of_the_death_once(started: Any) -> None:
    engine = started()
    child = ready(engine)
    deaths: list[BaseException] = []
    engine.when_dead(deaths.append)
    child.kill()
    wait_until(lambda: bool(deaths))
    engine.when_dead(deaths.append)
    assert deaths == [engine.death] * 2


# Being told to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_stops_processes_is_left_to_the_parent(started: Any, number: signal.Signals) -> None:
    """A terminal sends it to the whole group, and systemd to the whole control group."""
    engine = started(step_s=0.01)
    child = ready(engine)
    (stream,) = engine.add([a_request("a", 20)])
    child.send_signal(number)
    assert isinstance(stream.result(PATIENCE_S), Completed)
    assert engine.phase is Phase.READY


def test_a_child_that_is_stopped_while_nothing_runs_is_noticed_within_the_stated_time(started: Any) -> None:
    engine = started()
    child = ready(engine)
    child.suspend()
    stopped_s = time.monotonic()
    wait_until(lambda: engine.phase is Phase.DEAD)
    assert time.monotonic() - stopped_s < 13.0
    assert isinstance(engine.death, EngineHung)
    wait_until(lambda: gone(child))


class Raw:
    """A child without its client, so that a test may say anything to it."""

    def __init__(self, options: Options) -> None:
        self.channel = EngineChannel(decode=decode_tell)
        self.receiver = Receiver()
        with closing(self.receiver.file_pipe()) as pipe:
            command = [
                *(sys.executable, "-m", "stage_runtime.hosting.proc", "--engine", self.channel.address),
                *("--file-pipe", str(pipe.number), "--parent", str(os.getpid())),
            ]
            self.child = Child(command, environment(), keep=(pipe.number,))
        self.tells: list[Any] = []
        self.until(lambda tell: isinstance(tell, Hello))
        self.say(Setup(factory=FACTORY, argument=argument(options)))

    def say(self, ask: Struct | bytes) -> None:
        self.channel.send([0], ask)

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        """The next message like this."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for place, tell in enumerate(self.tells):
                if wanted(tell):
                    del self.tells[: place + 1]
                    return tell
            self.tells += self.channel.receive(0.1)
        raise AssertionError("it never came")

    def until_ready(self) -> None:
        self.until(lambda tell: isinstance(tell, Told) and tell.status and tell.status.phase is Phase.READY)

    def last_words(self) -> Leaving:
        words = self.until(lambda tell: isinstance(tell, Leaving))
        assert isinstance(words, Leaving)
        return words

    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.child.wait(PATIENCE_S)

    def close(self) -> None:
        self.child.close()
        self.receiver.close()
        self.channel.close()


@pytest.fixture
def raw(folder: Path) -> Iterator[Any]:
    made: list[Raw] = []

    def make(**options: Any) -> Raw:
        made.append(Raw(Options(**options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_child_that_is_asked_to_stop_exits_with_0(raw: Any) -> None:
    one = raw()
    one.until_ready()
    one.say(Stop(PATIENCE_S))
    assert one.last_words().death is None
    assert one.code() == 0


def test_a_child_that_is_asked_to_stop_while_it_loads_exits_with_0(raw: Any) -> None:
    one = raw(loads_forever=True)
    one.say(Stop(PATIENCE_S))
    assert one.code() == 0


def test_a_child_whose_engine_is_dead_keeps_its_code(raw: Any) -> None:
    one = raw()
    one.until_ready()
    one.say(Submit(1, (told(LOSE),)))
    assert one.last_words().death.kind == "DeviceLost"
    assert one.code() == 72


def test_rubbish_on_the_line_is_refused_with_a_reason(raw: Any) -> None:
    one = raw()
    one.until_ready()
    one.say(b"\xc1 rubbish")
    assert isinstance(decoded(one.last_words().death), InternalError)
    assert one.code() == 70


# Starting


@pytest.mark.parametrize("factory", ["no.such.module:build", "support.stage_child:nothing", "nonsense"])
def test_a_factory_that_is_not_there_is_a_wrong_config(started: Any, factory: str) -> None:
    engine = started(factory=factory)
    with pytest.raises(SpecError, match="module:function"):
        engine.wait_ready(PATIENCE_S)
    assert exit_code_of(engine.death) == 64


def test_a_broken_model_keeps_its_code(started: Any) -> None:
    engine = started(broken_model=True)
    with pytest.raises(ModelError):
        engine.wait_ready(PATIENCE_S)


def test_a_child_killed_while_it_loads_is_a_death(started: Any) -> None:
    engine = started(loads_forever=True)
    wait_until(lambda: engine.pid is not None)
    psutil.Process(engine.pid).kill()
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.wait_ready(PATIENCE_S)


def test_what_was_asked_before_it_started_is_not_lost(started: Any) -> None:
    engine = child_engine(Options())
    ended: list[Terminal] = []

    class Witness(Nobody):
        def on_ended(self, outcome: Terminal, seconds: float) -> None:
            ended.append(outcome)

    engine.observe(Witness())
    answer = engine.control(Outstanding())
    engine.start()
    ready(engine)
    (stream,) = engine.add([a_request("a")])
    stream.result(PATIENCE_S)
    assert [outcome.request_id for outcome in ended] == ["a"]
    assert answer.result(PATIENCE_S) == {"scripts": 0}
    engine.close(1.0)


def test_what_cannot_cross_is_a_wrong_request(started: Any) -> None:
    engine = started()
    ready(engine)
    with pytest.raises(InvalidRequest, match="another process"):
        engine.add([RequestBuilder("a").argument("seed_of_seeds", 1 << 70).build()])
    with pytest.raises(InvalidRequest, match="another process"):
        engine.control(Invoke("f", {"x": 1 << 70})).result(PATIENCE_S)
    assert not any(engine.outstanding().result(PATIENCE_S).values())


# Leaving nothing behind


def test_a_closed_stage_leaves_no_process_socket_file_descriptor_or_memory(folder: Path) -> None:
    def once() -> None:
        engine = child_engine(Options(slots=2))
        engine.start()
        child = ready(engine)
        (stream,) = engine.add([RequestBuilder("a").size(500, 500).build()])
        stream.result(PATIENCE_S)
        assert list(folder.iterdir()) == []
        engine.close()
        engine.close()
        assert gone(child)
        assert not segments.held()

    def held() -> tuple[int, int]:
        gc.collect()
        return psutil.Process().num_fds(), psutil.Process().num_threads()

    once()
    before = held()
    once()
    assert held() == before


def test_a_frozen_child_is_closed_in_bounded_time(started: Any) -> None:
    engine = started()
    child = ready(engine)
    child.suspend()
    engine.close(0.2)
    assert gone(child)
    assert engine.phase is Phase.CLOSED


def test_a_stage_may_be_closed_while_it_loads(started: Any) -> None:
    engine = started(loads_forever=True)
    wait_until(lambda: engine.pid is not None)
    child = psutil.Process(engine.pid)
    engine.close(PATIENCE_S)
    assert gone(child)
    with pytest.raises(NotAdmitting):
        engine.wait_ready(0)


PARENT = """
import sys
from support.stage_child import Options, child_engine, told, STALL
from support import segments
from support.builders import RequestBuilder
engine = child_engine(Options(slots=2))
engine.start()
engine.wait_ready(20)
engine.add([RequestBuilder("a").size(500, 500).build()])[0].result(20)
kept = engine.add([told(STALL, "b")])
print(engine.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_takes_its_child_along_and_nothing_is_left(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        wait_until(lambda: gone(child))
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir("/dev/shm")) <= before


def test_a_forgotten_stream_is_taken_back_while_the_client_rests(started: Any) -> None:
    engine = started()
    ready(engine)
    stream = engine.add([told(STALL)])
    del stream
    wait_until(lambda: not any(engine.outstanding().result(PATIENCE_S).values()))
