"""Cases that befell other servers, on ranks that are real processes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from faults.engines import ANSWER_S, is_answer, lost
from faults.matrix import Layout, Mode
from faults.rig import rigged
from stage_api.spec import ExtensionsSpec
from stage_runtime.assemble import build_engine
from stage_runtime.core.control import Health, Pause, Resume, Sleep, Wake
from stage_runtime.core.errors import EngineDeadError, EngineHung, InvalidRequest
from stage_runtime.core.outcome import Completed
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.pipelines.served_checkpoint import resolve_model
from support.builders import RequestBuilder
from support.mp_stage import PATIENCE_S, a_config, a_drawing, executor_of, serving
from support.segments import mapped
from support.stage_process import PROMPT_S, ROOT, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(300)

ROUNDS = 300


def at_rest(engine: Engine) -> bool:
    return not any(engine.outstanding().result(PATIENCE_S).values())


@pytest.fixture(scope="module")
def light() -> Iterator[Engine]:
    """An engine whose rank has no model: its large outputs are there at once."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / one) for one in ("crds", "worker", "tests"))
    config = a_config("request", slots=2)
    runner = ExtensionsSpec(runner="support.light_runner:LightRunner")
    engine_spec = config.engine.model_copy(update={"extensions": runner})
    try:
        with serving(config.model_copy(update={"engine": engine_spec})) as engine:
            yield engine
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def pair() -> Iterator[Engine]:
    """Two ranks that share the work of guidance."""
    with serving(a_config("step", cfg=2)) as engine:
        yield engine


def large(name: str) -> Request:
    """A request whose picture travels in shared memory."""
    return RequestBuilder(name).steps(3).size(64, 128).seed(7).build()


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_three_hundred_cancels_at_any_moment_wedge_nothing_and_leave_nothing(light: Engine) -> None:
    """Cases B02 and B36: by abort or by a consumer that goes away, also while the output is on its way."""
    chance = random.Random(0)
    for stream in light.add([large("warm-0"), large("warm-1")]):
        stream.result(PATIENCE_S)
    before = mapped()
    for number in range(ROUNDS):
        cancelled, kept = light.add([large(f"c{number}"), large(f"k{number}")])
        until_s = time.monotonic() + chance.uniform(0.0, 0.004)
        while time.monotonic() < until_s:
            pass
        if number % 2:
            light.abort(cancelled.request_id)
        del cancelled
        assert kept.result(PATIENCE_S).output.data[:1] == b"\x07"
    until(lambda: at_rest(light), "nothing is held")
    assert mapped() <= before + 1


def test_a_rank_that_ends_while_the_others_load_ends_the_start_and_is_named() -> None:
    """Case B20. Being told to stop is no such end: that is the engine's to decide."""
    config = a_config(data=2)
    engine = build_engine(config, resolve_model(config.model))
    engine.start()
    try:
        ranks = until(lambda: _ranks() if len(_ranks()) == 2 else {}, "both ranks are there")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(ranks[1], number)
        os.kill(ranks[1], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="rank 1 was killed by SIGKILL"):
            engine.wait_ready(PROMPT_S)
        until(lambda: not any(map(psutil.pid_exists, ranks.values())), "all ranks are gone", PROMPT_S)
    finally:
        engine.close()


def _ranks() -> dict[int, int]:
    """Process ids by rank of what this process has started."""
    found = {}
    for child in psutil.Process().children():
        words = child.cmdline()
        if "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = child.pid
    return found


def test_requests_that_the_pipeline_refuses_together_leave_both_ranks_at_work(pair: Engine) -> None:
    """Case B09: each gets its 400, and who comes next gets a picture."""
    bad = [
        msgspec.structs.replace(good, arguments=good.arguments | {"callback_on_step_end_tensor_inputs": 1})
        for good in (a_drawing(f"bad{n}") for n in range(8))
    ]
    streams = pair.add(bad)
    for stream in streams:
        with pytest.raises(InvalidRequest):
            stream.result(PATIENCE_S)
    (good,) = pair.add([a_drawing("good")])
    assert good.result(PATIENCE_S).steps == 4
    until(lambda: at_rest(pair), "nothing is held")


def test_an_unknown_seed_is_drawn_once_for_all_ranks(pair: Engine) -> None:
    """Case B05: eight requests at once that name none, each equal to the same one alone."""
    requests = [a_drawing(f"seed{n}", seed=None) for n in range(8)]
    together = [stream.result(PATIENCE_S).output.data for stream in pair.add(requests)]
    assert len(set(together)) == 8
    (alone,) = pair.add([a_drawing("alone", seed=requests[3].seed)])
    differ = [abs(a - b) for a, b in zip(alone.result(PATIENCE_S).output.data, together[3], strict=True)]
    assert max(differ) <= 1


def test_a_pause_with_weights_put_to_sleep_loses_no_request_and_changes_no_picture(pair: Engine) -> None:
    """Case B106: four requests at different steps, and one that ended just before."""
    lengths = {f"p{n}": 6 + 3 * n for n in range(4)}
    undisturbed = _drawn(pair, lengths)
    streams = pair.add([a_drawing(f"again-{name}", steps=steps) for name, steps in lengths.items()])
    next(iter(streams[3]))
    pair.control(Pause()).result(PATIENCE_S)
    pair.control(Sleep(level=1)).result(PATIENCE_S)
    pair.control(Sleep(level=1)).result(PATIENCE_S)
    with pytest.raises(InvalidRequest, match="sleep"):
        pair.control(Resume()).result(PATIENCE_S)
    assert not streams[3].ended
    pair.control(Wake()).result(PATIENCE_S)
    pair.control(Wake()).result(PATIENCE_S)
    assert [stream.result(PATIENCE_S).output.data for stream in streams] == undisturbed


def _drawn(engine: Engine, lengths: dict[str, int]) -> list[bytes]:
    streams = engine.add([a_drawing(name, steps=steps) for name, steps in lengths.items()])
    return [stream.result(PATIENCE_S).output.data for stream in streams]


def test_five_waits_for_a_rank_that_never_answers_end_within_one_deadline() -> None:
    """Case B107: one typed error that names the rank, and not a deadline after another."""
    with rigged(Layout.MP_1, Mode.STEP) as rig:
        rig.channel.once = False
        rig.channel.spoil, rig.channel.wanted = lost, is_answer
        began_s = time.monotonic()
        waits = [rig.engine.control(Health()) for _ in range(5)]
        failures = [wait.exception(PATIENCE_S) for wait in waits]
        assert time.monotonic() - began_s < 3 * ANSWER_S
    assert all(isinstance(failure, EngineHung) for failure in failures)
    assert isinstance(failures[0], EngineHung)
    assert failures[0].rank == 0
    assert "has not answered Health" in str(failures[0])


def test_a_killed_pod_takes_its_ranks_with_it_and_the_next_one_starts_in_its_place(tmp_path: Path) -> None:
    """Case B07, with a rank inside a collective."""
    before = set(os.listdir("/dev/shm"))
    config = a_config("step", cfg=2).encode()
    for life in ("first", "second"):
        folder = tmp_path / life
        folder.mkdir()
        with StageProcess.pod(config, folder) as pod:
            pod.wait_pod_ready()
            family = pod.family()
            assert len(family) == 3
            for rank in family[1:]:
                if life == "first":
                    rank.send_signal(signal.SIGSTOP)  # so that it can't end by itself
            pod.signal(signal.SIGKILL)
            until(lambda seen=family: not any(map(is_alive, seen)), "all of it is gone", PROMPT_S)
    assert set(os.listdir("/dev/shm")) <= before


def test_a_late_abort_of_a_request_that_is_done_does_nothing(light: Engine) -> None:
    (stream,) = light.add([large("done")])
    assert isinstance(stream.result(PATIENCE_S), Completed)
    light.abort("done")
    assert executor_of(light).capability.pipeline == "light"
    until(lambda: at_rest(light), "nothing is held")
