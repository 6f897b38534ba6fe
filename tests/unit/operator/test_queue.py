"""Whose turn it is: once at a time, once in the line, and after a wait that a change ends."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_operator.loop.queue import Backoff, Line, Queue, Retry, Turn

SECONDS = 5


def test_the_one_that_waited_longest_comes_first() -> None:
    line: Line[str] = Line()
    line.add("a", 1.0)
    line.add("b", 2.0)
    line.add("a", 3.0)
    first = line.take(5.0)
    assert first is not None
    assert (first.key, first.waited_s) == ("a", 4.0)
    assert line.depth() == 1


def test_what_changes_while_it_is_worked_on_is_due_again_afterwards() -> None:
    line: Line[str] = Line()
    line.add("a", 0.0)
    assert line.take(0.0) is not None
    line.add("a", 1.0)
    line.add("a", 2.0)
    assert line.take(2.0) is None, "it is being worked on"
    line.done("a")
    again = line.take(3.0)
    assert again is not None
    assert again.waited_s == 2.0
    line.done("a")
    assert line.take(9.0) is None


def test_a_timer_is_due_in_its_time_and_replaces_the_one_before() -> None:
    line: Line[str] = Line()
    line.add_at("a", 10.0)
    line.add_at("a", 20.0)
    assert line.next_at() == 20.0
    assert line.take(10.0) is None
    turn = line.take(21.0)
    assert turn is not None
    assert turn.waited_s == 1.0


def test_a_change_ends_a_wait() -> None:
    line: Line[str] = Line()
    line.add_at("a", 10.0)
    line.add("a", 1.0)
    assert line.take(1.0) is not None
    line.done("a")
    assert line.take(11.0) is None, "the timer went with the turn"
    assert line.next_at() is None


def test_each_failure_in_a_row_waits_twice_as_long_as_the_one_before() -> None:
    line: Line[str] = Line(Backoff(first_s=1, longest_s=5))
    waits = []
    for _ in range(4):
        line.add("a", 0.0)
        line.take(0.0)
        waits.append(line.failed("a", 0.0, jitter=0.0))
    assert waits == [1, 2, 4, 5]
    line.add("a", 0.0)
    line.take(0.0)
    line.done("a")
    line.add("a", 0.0)
    line.take(0.0)
    assert line.failed("a", 0.0, jitter=0.0) == 1


def test_a_failure_waits_no_longer_than_the_next_thing_that_is_due_anyway() -> None:
    line: Line[str] = Line(Backoff(first_s=8))
    line.add("a", 0.0)
    line.take(0.0)
    assert line.failed("a", 0.0, jitter=0.0, no_later_than=3.0) == 3.0
    assert line.next_at() == 3.0


def test_hurry_ends_the_waits_after_failures_and_no_others() -> None:
    line: Line[str] = Line()
    line.add("failed", 0.0)
    line.take(0.0)
    line.failed("failed", 0.0, jitter=0.0)
    line.add_at("planned", 50.0)
    line.hurry(0.0)
    turn = line.take(0.0)
    assert turn is not None
    assert turn.key == "failed"
    assert line.take(0.0) is None


def test_who_is_forgotten_has_no_timer_and_no_failures() -> None:
    line: Line[str] = Line()
    line.add("a", 0.0)
    line.take(0.0)
    line.failed("a", 0.0, jitter=0.0)
    line.forget("a")
    assert line.next_at() is None
    assert line.failing() == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "later", "take", "done", "fail"]))),
    st.sampled_from([0.0, 0.5, 2.5]),
)
def test_nothing_that_was_added_is_lost_and_nothing_is_worked_on_twice_at_a_time(
    steps: list[tuple[str, str]], pause_s: float
) -> None:
    line: Line[str] = Line(pause_s=pause_s)
    owed: set[str] = set()
    busy: set[str] = set()
    for now, (key, step) in enumerate(steps):
        if step == "add":
            line.add(key, now)
            owed.add(key)
        elif step == "later":
            line.add_at(key, now + 2)
            owed.add(key)
        elif step == "take" and (turn := line.take(now)) is not None:
            assert turn.key not in busy
            busy.add(turn.key)
            owed.discard(turn.key)
        elif step == "done" and key in busy:
            busy.discard(key)
            line.done(key)
        elif step == "fail" and key in busy:
            busy.discard(key)
            line.failed(key, now, jitter=0.0)
            owed.add(key)
    for key in tuple(busy):
        line.done(key)
    served = set()
    while (turn := line.take(len(steps) + 1000)) is not None:
        served.add(turn.key)
        line.done(turn.key)
    assert owed <= served


def test_a_queue_serves_each_key_serially_and_several_keys_at_a_time() -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    served: list[str] = []

    async def work(key: str, waited_s: float) -> float | None:
        running[key] += 1
        running["all"] += 1
        most[key] = max(most[key], running[key])
        most["all"] = max(most["all"], running["all"])
        await asyncio.sleep(0.01)
        running[key] -= 1
        running["all"] -= 1
        served.append(key)
        return None

    async def run() -> None:
        queue: Queue[str] = Queue(work, workers=2)
        queue.add(["a", "b", "c"])
        await asyncio.sleep(0.02)
        assert served == [], "the gate is shut"
        queue.open()
        async with asyncio.timeout(SECONDS):
            while len(served) < 3:
                queue.add(["a"])
                await asyncio.sleep(0.001)
        await queue.stop(SECONDS)

    asyncio.run(run())
    assert most["a"] == 1
    assert most["all"] == 2
    assert served.count("b") == served.count("c") == 1


@pytest.mark.parametrize("error", [Retry("not now"), ValueError("a defect")])
def test_a_failure_is_tried_again_and_holds_nobody_up(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[str] = []

    async def run() -> None:
        done = asyncio.Event()

        async def work(key: str, waited_s: float) -> float | None:
            served.append(key)
            if key == "bad" and served.count("bad") < 2:
                raise error
            if key == "bad":
                done.set()
            return None

        queue: Queue[str] = Queue(work, workers=1)
        queue.open()
        queue.add(["bad", "good"])
        async with asyncio.timeout(SECONDS):
            await done.wait()
        await queue.stop(SECONDS)

    asyncio.run(run())
    assert served == ["bad", "good", "bad"]
    assert len(caplog.records) == 1


def test_a_queue_comes_again_when_the_work_asked_for_it() -> None:
    times: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        async def work(key: str, waited_s: float) -> float | None:
            times.append(loop.time())
            if len(times) == 2:
                done.set()
            return loop.time() + 0.05

        queue: Queue[str] = Queue(work, workers=1, clock=loop.time)
        queue.open()
        queue.add(["a"])
        async with asyncio.timeout(SECONDS):
            await done.wait()
        await queue.stop(SECONDS)

    asyncio.run(run())
    assert times[1] - times[0] >= 0.05


def test_a_stopped_queue_lets_what_runs_end_and_takes_nothing_new() -> None:
    served: list[str] = []

    async def run() -> None:
        begun = asyncio.Event()

        async def work(key: str, waited_s: float) -> float | None:
            begun.set()
            await asyncio.sleep(0.05)
            served.append(key)
            return None

        queue: Queue[str] = Queue(work, workers=1)
        queue.open()
        queue.add(["a", "b"])
        await begun.wait()
        await queue.stop(SECONDS)

    asyncio.run(run())
    assert served == ["a"]


def test_changes_in_a_row_cost_one_turn_and_the_first_one_does_not_wait() -> None:
    line: Line[str] = Line(pause_s=1)
    line.add("a", 0)
    assert line.take(0) == Turn("a", 0)
    line.add("a", 0.1)  # while it is worked on
    line.done("a")
    line.add("a", 0.2)
    assert line.take(0.9) is None
    assert line.next_at() == 1
    assert line.take(1) == Turn("a", 0)  # since it might have been
    line.done("a")
    assert line.take(5) is None
    line.add("a", 5)
    assert line.take(5) == Turn("a", 0)


def test_the_pause_of_one_holds_nobody_else_up() -> None:
    line: Line[str] = Line(pause_s=1)
    line.add("a", 0)
    line.take(0)
    line.done("a")
    line.add("a", 0.1)
    line.add("b", 0.2)
    assert line.take(0.2) == Turn("b", 0)
