"""Requests through ranks that are processes of their own: the same pictures, nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from stage_runtime.core.control import Outstanding, Pause, Resume, StopEarly
from stage_runtime.core.errors import EngineDeadError, InvalidRequest, NotAdmitting, RequestAborted
from stage_runtime.core.outcome import Progressed
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase
from support.mp_stage import PATIENCE_S, a_config, a_drawing, executor_of, serving
from support.stage_process import until

pytestmark = pytest.mark.timeout(300)

MODES = ("step", "request")
ONE_MODE = ("step", pytest.param("request", marks=pytest.mark.sweep))
"""Where a mode changes little and each start costs a rank or two."""


@pytest.fixture(scope="module", params=MODES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine with one rank of its own."""
    with serving(a_config(request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def picture() -> bytes:
    """What the engine's own process draws."""
    with serving(a_config(executor="uni")) as uni:
        (stream,) = uni.add([a_drawing("a")])
        return stream.result(PATIENCE_S).output.data


def at_rest(engine: Engine) -> bool:
    """True when nothing is held for any request, here and in the ranks."""
    return not any(engine.outstanding().result(PATIENCE_S).values())


def test_a_picture_is_the_same_to_the_last_bit_as_in_one_process(engine: Engine, picture: bytes) -> None:
    (stream,) = engine.add([a_drawing("same")])
    assert stream.result(PATIENCE_S).output.data == picture


def test_progress_is_told_step_by_step(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("steps", steps=6)])
    seen = [outcome.step for outcome in stream if isinstance(outcome, Progressed)]
    assert seen == sorted(seen)
    assert seen
    assert seen[-1] <= 6


def test_previews_come_with_progress(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("previews", steps=6, previews=2)])
    previews = [o.preview for o in stream if isinstance(o, Progressed) and o.preview is not None]
    assert [preview.shape for preview in previews] == [(64, 64, 3)] * 2


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_an_aborted_request_leaves_nothing_in_the_rank(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("abort", steps=1000)])
    next(iter(stream))
    engine.abort("abort")
    with pytest.raises(RequestAborted):
        stream.result(PATIENCE_S)
    until(lambda: at_rest(engine), "the rank has forgotten it")


def test_a_consumer_that_goes_away_leaves_nothing_in_the_rank(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("dropped", steps=1000)])
    next(iter(stream))
    del stream
    until(lambda: at_rest(engine), "the rank has forgotten it")


@pytest.mark.invariant("BATCH-INV-002")
def test_requests_of_different_lengths_end_each_with_its_own_picture(engine: Engine, picture: bytes) -> None:
    streams = engine.add([a_drawing(f"mixed{n}", steps=4 + n, seed=7 + n) for n in range(6)])
    pictures = [stream.result(PATIENCE_S).output.data for stream in streams]
    assert len(set(pictures)) == 6
    (alone,) = engine.add([a_drawing("alone", steps=9, seed=12)])
    close = zip(alone.result(PATIENCE_S).output.data, pictures[5], strict=True)
    assert max(abs(a - b) for a, b in close) <= 1


def test_an_early_stop_decodes_what_is_there(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("early", steps=1000)])
    next(iter(stream))
    engine.control(StopEarly("early")).result(PATIENCE_S)
    assert stream.result(PATIENCE_S).steps < 1000


def test_an_early_stop_of_nobody_is_the_caller_s_fault(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        engine.control(StopEarly("nobody")).result(PATIENCE_S)


def test_paused_requests_stay_and_go_on(engine: Engine) -> None:
    (stream,) = engine.add([a_drawing("paused", steps=40)])
    next(iter(stream))
    engine.control(Pause()).result(PATIENCE_S)
    engine.control(Outstanding()).result(PATIENCE_S)  # what was said before the barrier has come by now
    still = engine.snapshot().outstanding_cost
    (late,) = engine.add([a_drawing("late")])
    engine.control(Outstanding()).result(PATIENCE_S)
    assert engine.snapshot().outstanding_cost == still + 4 * 64 * 64
    engine.control(Resume()).result(PATIENCE_S)
    assert stream.result(PATIENCE_S).steps == 40
    assert late.result(PATIENCE_S).steps == 4


def test_the_parent_loads_no_torch() -> None:
    """In a process of its own: this one has loaded it long ago."""
    import subprocess

    script = (
        "from support.mp_stage import a_config, a_drawing, serving\n"
        "import sys\n"
        "with serving(a_config()) as engine:\n"
        "    (stream,) = engine.add([a_drawing('a', steps=1)])\n"
        "    stream.result(60)\n"
        "    print(*sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)), 'end')\n"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{root}/crds:{root}/worker:{root}/tests"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split() == ["end"], done.stderr


# Ends


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_killed_rank_fails_every_stream_and_the_engine_for_good(mode: str) -> None:
    with serving(a_config(mode)) as engine:
        streams = engine.add([a_drawing(f"r{n}", steps=1000) for n in range(6)])
        next(iter(streams[0]))
        os.kill(executor_of(engine).pids[0], signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match="rank 0 was killed by SIGKILL"):
                stream.result(PATIENCE_S)
        assert engine.phase is Phase.DEAD
        with pytest.raises(EngineDeadError):
            engine.add([a_drawing("late")])


def test_a_rank_that_is_killed_while_idle_is_noticed_at_once() -> None:
    with serving(a_config()) as engine:
        os.kill(executor_of(engine).pids[0], signal.SIGKILL)
        until(lambda: engine.phase is Phase.DEAD, "the engine is dead")
        assert isinstance(engine.death, EngineDeadError)
        assert engine.death.rank == 0


def test_closing_under_load_ends_every_stream_and_leaves_no_process_file_or_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with serving(a_config()) as engine:
        pids = list(executor_of(engine).pids.values())
        streams = engine.add([a_drawing(f"r{n}", steps=1000) for n in range(6)])
        next(iter(streams[0]))
        engine.close()
        engine.close()
        for stream in streams:
            with pytest.raises(NotAdmitting):
                stream.result(PATIENCE_S)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize("mode", ONE_MODE)
def test_requests_go_to_both_copies_of_the_model(mode: str, picture: bytes) -> None:
    with serving(a_config(mode, data=2, slots=2)) as engine:
        streams = engine.add([a_drawing(f"r{n}", steps=30) for n in range(4)])
        next(iter(streams[0]))
        assert engine.snapshot().running == 4
        for stream in streams:
            stream.result(PATIENCE_S)
        drawn = engine.add([a_drawing(f"s{n}") for n in range(2)])
        assert [stream.result(PATIENCE_S).output.data for stream in drawn] == [picture] * 2
        until(lambda: at_rest(engine), "both ranks have forgotten all")
        wait([engine.control(Pause()), engine.control(Resume())], PATIENCE_S)
