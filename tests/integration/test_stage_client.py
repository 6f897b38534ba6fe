"""A stage in this process, as a server sees it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from stage_runtime.core.control import StopEarly
from stage_runtime.core.errors import AdmissionFull, EngineDeadError, InvalidRequest
from stage_runtime.core.outcome import Aborted, Completed, Failed, Outcome, Progressed
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase
from stage_runtime.stage.client import StageClient
from stage_runtime.stage.inline import InlineStage
from support.builders import EngineBuilder, RequestBuilder, a_request, some_requests
from support.scripted import CAPABILITY, PATIENCE_S, ScriptedExecutor

Scene = Callable[[StageClient, ScriptedExecutor], Awaitable[None]]


def play(scene: Scene, builder: EngineBuilder | None = None) -> Engine:
    """Run `scene` on a stage whose engine has its thread."""
    with (builder or EngineBuilder()).started() as (engine, executor):
        asyncio.run(asyncio.wait_for(_awaited(scene(InlineStage(engine), executor)), PATIENCE_S))
        return engine


async def _awaited(scene: Awaitable[None]) -> None:
    await scene


async def at_rest(stage: StageClient) -> bool:
    load = stage.snapshot()
    return load.running == load.waiting == load.outstanding_cost == 0


def test_outcomes_of_several_requests_come_merged_with_one_terminal_each() -> None:
    async def scene(stage: StageClient, _: ScriptedExecutor) -> None:
        outcomes = [outcome async for outcome in await stage.submit(some_requests("abc"))]
        ends = [outcome for outcome in outcomes if not isinstance(outcome, Progressed)]
        assert {end.request_id for end in ends} == set("abc")
        assert all(isinstance(end, Completed) for end in ends)
        assert len(ends) == 3

    play(scene, EngineBuilder().slots(2))


def test_previews_come_before_the_output() -> None:
    async def scene(stage: StageClient, _: ScriptedExecutor) -> None:
        request = RequestBuilder("a").steps(6).previews(2, 4).build()
        outcomes = [outcome async for outcome in await stage.submit([request])]
        previews = [o.preview_index for o in outcomes if isinstance(o, Progressed) and o.preview is not None]
        assert previews == [0, 1]
        assert isinstance(outcomes[-1], Completed)

    play(scene)


def test_a_full_stage_refuses_before_anything_is_awaited() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        gate = executor.block()
        first = await stage.submit([a_request("a")])
        await asyncio.to_thread(gate.wait_arrival)
        second = await stage.submit([a_request("b")])
        with pytest.raises(AdmissionFull):
            await stage.submit([a_request("c")])
        gate.open()
        assert [type([o async for o in outcomes][-1]) for outcomes in (first, second)] == [
            Completed,
            Completed,
        ]

    play(scene, EngineBuilder().queue(1))


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_closing_the_outcomes_takes_back_what_has_not_ended() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.stall("a")
        outcomes = await stage.submit(some_requests("ab"))
        await outcomes.aclose()
        await outcomes.aclose()
        assert await at_rest(stage)
        assert [outcome async for outcome in outcomes] == []

    play(scene)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_cancelling_the_wait_for_an_outcome_takes_its_request_back() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.stall("a")
        outcomes = await stage.submit([a_request("a")])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(outcomes)
        assert await at_rest(stage)

    play(scene)


@pytest.mark.invariant("DIFF-RUNTIME-INV-003")
def test_forgetting_the_outcomes_takes_their_requests_back() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.stall("a")
        outcomes = await stage.submit([a_request("a")])
        del outcomes
        gc.collect()
        assert await at_rest(stage)

    play(scene)


def test_an_event_loop_that_ended_does_not_disturb_the_engine() -> None:
    kept = []

    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.stall("a")
        kept.append(await stage.submit([a_request("a")]))

    with EngineBuilder().started() as (engine, executor):
        asyncio.run(_awaited(scene(InlineStage(engine), executor)))
        executor.unstall("a")
        (stream,) = engine.add([a_request("b")])
        assert isinstance(stream.result(10), Completed)
        assert engine.phase is Phase.READY


def test_an_abort_ends_the_outcomes() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.stall("a")
        outcomes = await stage.submit([a_request("a")])
        await stage.abort("a")
        assert [outcome async for outcome in outcomes] == [Aborted("a")]

    play(scene)


def test_a_control_call_is_awaited_and_its_refusal_is_raised() -> None:
    async def scene(stage: StageClient, _: ScriptedExecutor) -> None:
        with pytest.raises(InvalidRequest):
            await stage.control(StopEarly("unknown"))

    play(scene)


def test_death_reaches_those_who_wait() -> None:
    async def scene(stage: StageClient, executor: ScriptedExecutor) -> None:
        executor.die(EngineDeadError("killed"))
        outcomes: list[Outcome] = [outcome async for outcome in await stage.submit([a_request("a")])]
        assert outcomes == [Failed("a", "killed", 503, "engine_dead")]
        assert (stage.phase, str(stage.death)) == (Phase.DEAD, "killed")
        with pytest.raises(EngineDeadError):
            stage.check_health()

    play(scene)


def test_a_stage_tells_what_it_is() -> None:
    async def scene(stage: StageClient, _: ScriptedExecutor) -> None:
        assert stage.capability == CAPABILITY
        assert (stage.phase, stage.death, stage.progress().limit_s) == (Phase.READY, None, None)
        stage.check_health()

    play(scene)


def test_a_stage_drains() -> None:
    async def scene(stage: StageClient, _: ScriptedExecutor) -> None:
        outcomes = await stage.submit([a_request("a")])
        stage.close_admission()
        assert await stage.drain(PATIENCE_S)
        assert isinstance([outcome async for outcome in outcomes][-1], Completed)

    play(scene)
