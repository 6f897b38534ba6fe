"""A stage as a server sees it, wherever its engine lives: in this process, or in a child of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from stage_runtime.assemble import client_of
from stage_runtime.core.control import Outstanding, StopEarly
from stage_runtime.core.errors import (
    AdmissionFull,
    DeviceLost,
    EngineDeadError,
    InvalidRequest,
    ModelError,
    NotAdmitting,
    StageError,
)
from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Progressed, Terminal
from stage_runtime.engine.phase import Phase
from stage_runtime.exit import exit_code_of
from stage_runtime.hosting.client import Outcomes, StageClient
from support.builders import RequestBuilder, a_request, some_requests
from support.http_stage import wait_until
from support.scripted import CAPABILITY, PATIENCE_S
from support.stage_child import DIE, FAIL, HANG, LOSE, STALL, told
from support.stage_house import House

LOOK_S = 0.002


@pytest.fixture(params=["inline", "child"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(request.param)
    yield house
    house.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody tells when a status changes
            await asyncio.sleep(LOOK_S)


def at_rest(stage: StageClient) -> bool:
    load = stage.snapshot()
    return load.running == load.waiting == load.outstanding_cost == 0


async def ends_of(outcomes: Outcomes) -> list[Outcome]:
    return [outcome async for outcome in outcomes if not isinstance(outcome, Progressed)]


def test_outcomes_of_several_requests_come_merged_with_one_terminal_each(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        ends = await ends_of(await stage.submit(some_requests("abc")))
        assert {end.request_id for end in ends} == set("abc")
        assert all(isinstance(end, Completed) for end in ends)
        assert len(ends) == 3

    house.play(scene, slots=2)


def test_each_request_gets_its_own_picture_whole(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        requests = [RequestBuilder(f"{n}").seed(n).size(600, 500 + n).build() for n in range(1, 5)]
        ends = {end.request_id: end for end in await ends_of(await stage.submit(requests))}
        for n in range(1, 5):
            end = ends[f"{n}"]
            assert isinstance(end, Completed)
            assert end.output.shape == (600, 500 + n, 3)
            assert end.output.data == bytes([n] * 3) * (600 * (500 + n))

    house.play(scene)


def test_previews_come_before_the_output(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        request = RequestBuilder("a").steps(6).previews(2, 4).size(300, 300).build()
        outcomes = [outcome async for outcome in await stage.submit([request])]
        previews = [o for o in outcomes if isinstance(o, Progressed) and o.preview is not None]
        assert [preview.preview_index for preview in previews] == [0, 1]
        assert all(len(o.preview.data) == 300 * 300 * 3 for o in previews if o.preview)
        assert isinstance(outcomes[-1], Completed)

    house.play(scene)


def test_a_full_stage_refuses_with_the_seconds_to_wait(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        first = await stage.submit([told(STALL)])
        await until(lambda: stage.snapshot().running == 1)
        second = await stage.submit([a_request("b")])
        with pytest.raises(AdmissionFull) as full:
            await stage.submit([a_request("c")])
        assert full.value.retry_after_s > 0
        await stage.abort("a")
        assert await ends_of(first) == [Aborted("a")]
        assert [type(end) for end in await ends_of(second)] == [Completed]

    house.play(scene, queue=1)


def test_a_wrong_request_is_refused_as_wrong_and_its_field_named(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        first = await stage.submit([told(STALL)])
        with pytest.raises(InvalidRequest) as wrong:
            await stage.submit([a_request("a")])
        assert (wrong.value.status, wrong.value.field) == (400, "request_id")
        await first.aclose()

    house.play(scene)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_closing_the_outcomes_takes_back_what_has_not_ended(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL), a_request("b")])
        await outcomes.aclose()
        await outcomes.aclose()
        await until(lambda: at_rest(stage))
        assert [outcome async for outcome in outcomes] == []

    house.play(scene)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_cancelling_the_wait_for_an_outcome_takes_its_request_back(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(outcomes)
        await until(lambda: at_rest(stage))

    house.play(scene)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_forgetting_the_outcomes_takes_their_requests_back(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL)])
        del outcomes
        gc.collect()
        await until(lambda: at_rest(stage))

    engine = house.play(scene)
    assert not any(engine.outstanding().result(PATIENCE_S).values())


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_cancelling_an_admission_leaves_nothing_behind(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        admission = asyncio.ensure_future(stage.submit([told(STALL)]))
        await asyncio.sleep(0)
        admission.cancel()
        await asyncio.gather(admission, return_exceptions=True)
        del admission
        gc.collect()
        answered = await (await stage.submit([a_request("b")])).__anext__()
        assert answered.request_id == "b"

    engine = house.play(scene)
    wait_until(lambda: not any(engine.outstanding().result(PATIENCE_S).values()))


def test_an_event_loop_that_ended_does_not_disturb_the_engine(house: House) -> None:
    kept = []

    async def scene(stage: StageClient) -> None:
        kept.append(await stage.submit([told(STALL)]))

    engine = house.play(scene, slots=2)
    (stream,) = engine.add([a_request("b")])
    assert isinstance(stream.result(PATIENCE_S), Completed)
    assert engine.phase is Phase.READY


def test_an_abort_ends_the_outcomes(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL)])
        await stage.abort("unknown")
        await stage.abort("a")
        assert [outcome async for outcome in outcomes] == [Aborted("a")]

    house.play(scene)


def test_an_id_may_be_used_again_and_the_later_request_lives(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        first = await stage.submit([told(STALL)])
        await stage.abort("a")
        await ends_of(first)
        await until(lambda: stage.snapshot().untold == 0)
        second = await stage.submit([a_request("a")])
        await first.aclose()
        assert [type(end) for end in await ends_of(second)] == [Completed]

    house.play(scene)


def test_a_control_call_is_answered_and_a_refusal_is_raised(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        assert await stage.control(Outstanding()) == {"scripts": 0}
        with pytest.raises(InvalidRequest) as wrong:
            await stage.control(StopEarly("unknown"))
        assert wrong.value.field == "request_id"

    house.play(scene)


def test_a_request_that_fails_fails_alone(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        ends = await ends_of(await stage.submit([told(FAIL), a_request("b")]))
        (failure,) = [end for end in ends if isinstance(end, Failed)]
        assert failure == Failed("a", "ValueError: nan", 500, "request_failed")
        assert len(ends) == 2
        assert stage.phase is Phase.READY

    house.play(scene, slots=2)


@pytest.mark.parametrize(("word", "kind", "code"), [(DIE, EngineDeadError, 70), (LOSE, DeviceLost, 72)])
def test_death_reaches_those_who_wait_with_its_type(
    house: House, word: str, kind: type[EngineDeadError], code: int
) -> None:
    async def scene(stage: StageClient) -> None:
        waiting = await stage.submit([told(STALL)])
        deadly = await stage.submit([told(word, "b")])
        for outcomes in (waiting, deadly):
            (end,) = await ends_of(outcomes)
            assert isinstance(end, Failed)
            assert (end.status, end.code) == (503, kind.code)
        await until(lambda: stage.phase is Phase.DEAD)
        assert type(stage.death) is kind
        assert exit_code_of(stage.death) == code
        with pytest.raises(kind):
            stage.check_health()
        with pytest.raises(kind):
            await stage.submit([a_request("c")])
        with pytest.raises(StageError):
            await stage.control(Outstanding())

    house.play(scene, slots=2)


def test_a_hanging_tick_is_a_death(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        def dead() -> bool:
            with suppress(EngineDeadError):
                stage.check_health()
            return stage.phase is Phase.DEAD

        outcomes = await stage.submit([told(HANG)])
        await until(dead)
        (end,) = await ends_of(outcomes)
        assert isinstance(end, Failed)
        assert (end.status, end.code) == (503, "engine_hung")
        assert exit_code_of(stage.death) == 71

    house.play(scene, startup_timeout_s=0.5)


def test_a_stage_tells_what_it_is(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        await until(lambda: stage.progress().limit_s is None)
        assert stage.capability == CAPABILITY
        assert (stage.phase, stage.death, stage.snapshot().capacity) == (Phase.READY, None, 3)
        stage.check_health()

    house.play(scene, slots=3)


def test_a_stage_shows_how_long_its_head_of_line_waits(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        first = await stage.submit([told(STALL)])
        second = await stage.submit([told(STALL, "b")])
        await until(lambda: stage.snapshot().waiting == 1)
        before_s = stage.snapshot().oldest_age_s
        await until(lambda: stage.snapshot().oldest_age_s > before_s + 0.01)
        for outcomes in (first, second):
            await outcomes.aclose()

    house.play(scene)


def test_a_stage_drains(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([a_request("a", 20)])
        stage.close_admission()
        assert stage.phase is Phase.DRAINING
        with pytest.raises(NotAdmitting):
            await stage.submit([a_request("b")])
        assert await stage.drain(PATIENCE_S)
        assert [type(end) for end in await ends_of(outcomes)] == [Completed]

    house.play(scene, step_s=0.005)


def test_a_drain_says_when_not_all_have_ended(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL)])
        assert not await stage.drain(0.05)
        await outcomes.aclose()
        assert await stage.drain(PATIENCE_S)

    house.play(scene)


def test_closing_the_engine_ends_every_wait(house: House) -> None:
    async def scene(stage: StageClient) -> None:
        outcomes = await stage.submit([told(STALL)])
        await until(lambda: stage.snapshot().running == 1)
        await asyncio.to_thread(house.close)
        (end,) = await ends_of(outcomes)
        assert isinstance(end, Failed)
        assert (end.status, end.code) == (503, "not_admitting")
        assert stage.phase is Phase.CLOSED
        assert at_rest(stage)
        with pytest.raises(NotAdmitting):
            await stage.submit([a_request("b")])
        with pytest.raises(NotAdmitting):
            await stage.control(Outstanding())

    engine = house.play(scene)
    engine.close()


def test_nothing_is_admitted_while_it_starts(house: House) -> None:
    engine = house.engine(broken_model=True)
    with pytest.raises((NotAdmitting, EngineDeadError)):
        engine.add([a_request("a")])
    with pytest.raises(NotAdmitting):
        _ = engine.capability


def test_a_broken_model_is_raised_where_readiness_is_awaited(house: House) -> None:
    engine = house.engine(broken_model=True)
    with pytest.raises(ModelError, match="no weights"):
        engine.wait_ready(PATIENCE_S)
    assert exit_code_of(engine.death) == 65


class Witness:
    """Observes."""

    def __init__(self) -> None:
        self.started = 0
        self.waves: list[int] = []
        self.ended: list[str] = []

    def on_started(self, queue_s: float) -> None:
        self.started += queue_s >= 0

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        self.waves.append(size * steps)

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        self.ended.append(f"{type(outcome).__name__} {outcome.request_id}")


def test_an_observer_has_been_told_when_the_outcome_is_there(house: House) -> None:
    witness = Witness()
    seen: list[list[str]] = []

    async def scene(stage: StageClient) -> None:
        engine.observe(witness)
        await ends_of(await stage.submit([a_request("a", 3)]))
        seen.append(list(witness.ended))

    engine = house.engine()
    engine.wait_ready(PATIENCE_S)

    async def played() -> None:
        await scene(client_of(engine))

    asyncio.run(played())
    assert seen == [["Completed a"]]
    wait_until(lambda: (witness.started, witness.waves) == (1, [1, 1, 1]))
