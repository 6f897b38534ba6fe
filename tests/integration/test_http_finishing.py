"""A client ends its own request early by the id that its stream told it, and nobody else can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from support.builders import EngineBuilder
from support.http_program import TimedExecutor
from support.http_stage import IMAGES_URL, HttpStage, wait_until
from support.scripted import PATIENCE_S

LONG = {"prompt": "a", "stream": True, "num_inference_steps": 1000}
STEP_S = 0.01
"""So that a request that isn't ended early takes longer than the whole test."""


@pytest.fixture(scope="module")
def stage() -> Iterator[HttpStage]:
    with HttpStage(EngineBuilder().step_mode().slots(2), lambda: TimedExecutor(STEP_S)) as stage:
        yield stage


@contextmanager
def streamed(stage: HttpStage, **more: object) -> Iterator[httpx.Response]:
    with stage.client() as client, client.stream("POST", IMAGES_URL, json=LONG | more) as answer:
        yield answer


def completed(answer: httpx.Response) -> list[dict[str, object]]:
    """The finished images of a stream, read to its end."""
    lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    return [event for event in map(json.loads, lines) if event["type"] == "image_generation.completed"]


def finish(client: httpx.Client, finish_id: str) -> httpx.Response:
    return client.post(f"/v1/requests/{finish_id}/finish")


def test_a_client_ends_its_request_early_and_gets_the_image_so_far(
    stage: HttpStage, client: httpx.Client
) -> None:
    with streamed(stage) as answer:
        finish_id = answer.headers["x-finish-id"]
        assert finish(client, finish_id).json() == {"finishing": 1}
        assert len(completed(answer)) == 1
    wait_until(lambda: finish(client, finish_id).status_code == 404)
    assert finish(client, finish_id).json()["error"]["code"] == "request_not_found"


def test_what_runs_is_ended_and_what_waits_goes_on_until_it_is_told_too(
    stage: HttpStage, client: httpx.Client
) -> None:
    with streamed(stage, n=3) as answer, ThreadPoolExecutor(1) as asker:
        finish_id = answer.headers["x-finish-id"]
        assert finish(client, finish_id).json()["finishing"] >= 1
        reading = asker.submit(completed, answer)
        wait_until(lambda: finish(client, finish_id).status_code == 404)
        assert len(reading.result(PATIENCE_S)) == 3


def test_what_has_not_begun_can_not_be_ended_early(stage: HttpStage, client: httpx.Client) -> None:
    with ExitStack() as held:
        running = held.enter_context(streamed(stage, n=2))
        waiting = held.enter_context(streamed(stage))
        refused = finish(client, waiting.headers["x-finish-id"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_running")
        assert finish(client, running.headers["x-finish-id"]).status_code == 200
        assert len(completed(running)) == 2
        wait_until(lambda: finish(client, waiting.headers["x-finish-id"]).status_code == 200)
        assert len(completed(waiting)) == 1


def test_no_other_id_ends_it(stage: HttpStage, client: httpx.Client) -> None:
    """Not the request id that it chose itself, nor those in events and logs, nor half of the right one."""
    with stage.client(**{"x-request-id": "mine"}) as own, own.stream("POST", IMAGES_URL, json=LONG) as answer:
        finish_id = answer.headers["x-finish-id"]
        assert len(finish_id) >= 32
        wrong = [
            "mine",
            "mine-0",
            "0",
            "*",
            finish_id[:-1],
            finish_id.swapcase(),
            f"{finish_id}x",
            "a" * 4000,
        ]
        assert {finish(client, guess).status_code for guess in wrong} == {404}
        assert stage.engine.snapshot().running == 1
        assert finish(client, finish_id).status_code == 200
        assert len(completed(answer)) == 1


def test_ids_of_two_streams_have_nothing_in_common(stage: HttpStage, client: httpx.Client) -> None:
    with streamed(stage) as first, streamed(stage) as second:
        ids = [answer.headers["x-finish-id"] for answer in (first, second)]
        assert ids[0][:8] != ids[1][:8]
        assert {finish(client, one).status_code for one in ids} == {200}


def test_an_id_ends_with_its_client(stage: HttpStage, client: httpx.Client) -> None:
    with streamed(stage) as answer:
        finish_id = answer.headers["x-finish-id"]
    wait_until(lambda: finish(client, finish_id).status_code == 404)


def test_an_answer_that_comes_whole_has_no_such_id(client: httpx.Client) -> None:
    answer = client.post(IMAGES_URL, json={"prompt": "a", "num_inference_steps": 1})
    assert "x-finish-id" not in answer.headers
