"""What a client gets that asks wrongly, too much, or too late: OpenAI's envelope, always."""

from __future__ import annotations

import json
import threading

import httpx
import openai
import pytest
from msgspec.structs import replace

from stage_runtime.core.errors import DeviceLost
from stage_runtime.core.outcome import Output
from stage_runtime.core.wave import Wave
from stage_runtime.server.http.drain import Door
from stage_runtime.server.http.start_times import UNTOLD_S
from support.builders import EngineBuilder
from support.http_stage import HttpStage, PictureExecutor, wait_until
from support.scripted import PATIENCE_S

URL = "/v1/images/generations"


def error(answer: httpx.Response) -> dict[str, object]:
    """The envelope's inside, checked for its shape."""
    assert answer.headers["content-type"] == "application/json"
    (key,) = answer.json()
    assert key == "error"
    inside = answer.json()["error"]
    assert set(inside) == {"message", "type", "param", "code"}
    return dict(inside)


# Wrong


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "a", "n": "2"}, "n"),
        ({"prompt": "a", "n": True}, "n"),
        ({"prompt": "a", "seed": -1}, "seed"),
        ({"prompt": "a", "seed": 2**63 - 1, "n": 2}, "seed"),
        ({"prompt": "a", "size": "513x512"}, "size"),
        ({"prompt": "a", "size": "64x99999"}, "size"),
        ({"prompt": "a", "num_inference_steps": 0}, "num_inference_steps"),
        ({"prompt": "a", "guidance_scale": 1e6}, "guidance_scale"),
        ({"prompt": "a" * 1025}, "prompt"),
        ({"prompt": "a\0"}, "prompt"),
        ({"prompt": "a", "partial_images": 2}, "partial_images"),
        ({"prompt": "a", "output_compression": 50}, "output_compression"),
        ({"prompt": "a", "response_format": "url"}, "response_format"),
        ({"prompt": "a", "background": "transparent"}, "background"),
        ({"prompt": "a", "strength": 1}, "strength"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, body: dict[str, object], param: str) -> None:
    """Case B15, B48 and B49."""
    answer = client.post(URL, json=body)
    assert answer.status_code == 400
    inside = error(answer)
    assert (inside["param"], inside["type"], inside["code"]) == (
        param,
        "invalid_request_error",
        "invalid_request",
    )
    assert str(inside["message"]).startswith(param) or param in str(inside["message"])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_finite_number_is_refused(client: httpx.Client, number: str) -> None:
    """Case B49."""
    answer = client.post(
        URL,
        content=f'{{"prompt": "a", "guidance_scale": {number}}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert error(answer)["param"] == "guidance_scale"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"prompt"',
        b"\xff\xfe\xfd",
        b'{"prompt": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"prompt": "a", "n": ' + b"9" * 10_000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, content: bytes) -> None:
    answer = client.post(URL, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert error(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_of_another_kind_is_refused_with_a_hint(client: httpx.Client, kind: str) -> None:
    answer = client.post(URL, content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert answer.status_code == 400
    assert "application/json" in str(error(answer)["message"])


def test_all_faults_stand_in_one_message(client: httpx.Client) -> None:
    inside = error(client.post(URL, json={"prompt": "a", "n": 0, "seed": -1, "colour": "red"}))
    assert inside["param"] == "n"
    assert all(name in str(inside["message"]) for name in ("n:", "seed:", "'colour'"))


def test_a_fault_does_not_repeat_what_the_client_sent(client: httpx.Client) -> None:
    answer = client.post(URL, json={"prompt": ["my secret"], "n": "my secret", "size": "my secret"})
    assert "secret" not in answer.text


@pytest.mark.parametrize("size", ["1024x", "64X64", "0x512", "64x64 "])
def test_a_size_that_is_no_size_is_answered_in_words(client: httpx.Client, size: str) -> None:
    """Case B48."""
    answer = client.post(URL, json={"prompt": "a circle", "size": size})
    assert answer.status_code == 400
    assert error(answer)["message"] == 'size: expected WIDTHxHEIGHT in pixels, such as 64x64, or "auto"'


@pytest.mark.parametrize("size", ["70x64", "99999x99999"])
def test_a_size_that_the_model_can_not_draw_is_answered_with_what_it_can(
    client: httpx.Client, size: str
) -> None:
    """Case B48."""
    answer = client.post(URL, json={"prompt": "a circle", "size": size})
    assert answer.status_code == 400
    assert error(answer)["param"] == "size"
    assert "multiple of" in str(error(answer)["message"])


def test_unknown_paths_and_methods_have_the_envelope_too(client: httpx.Client) -> None:
    assert error(client.get("/v1/nothing"))["code"] == "not_found"
    wrong_method = client.get(URL)
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert error(wrong_method)["code"] == "method_not_allowed"
    assert client.post(URL + "/", json={"prompt": "a"}).status_code == 404


def test_a_body_over_a_megabyte_is_refused(client: httpx.Client) -> None:
    for megabytes in (1, 10, 60):
        answer = client.post(URL, json={"prompt": "a" * (megabytes << 20)})
        assert answer.status_code == 413
        assert error(answer)["code"] == "body_too_large"


def test_a_body_over_a_megabyte_in_chunks_is_refused(client: httpx.Client) -> None:
    chunks = (b" " * 1024 for _ in range(2000))
    answer = client.post(URL, content=chunks, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert error(answer)["code"] == "body_too_large"


# Request ids


def test_every_answer_has_the_clients_request_id(client: httpx.Client) -> None:
    for answer in (
        client.get("/livez", headers={"x-request-id": "mine-1"}),
        client.get("/nothing", headers={"x-request-id": "mine-1"}),
        client.post(URL, json={}, headers={"x-request-id": "mine-1"}),
        client.post(URL, json={"prompt": "a"}, headers={"x-request-id": "mine-1"}),
        client.post(URL, json={"prompt": "a", "stream": True}, headers={"x-request-id": "mine-1"}),
        client.post(URL, content=b" " * 2_000_000, headers={"x-request-id": "mine-1"}),
    ):
        assert answer.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("insane", ["", "a" * 65, "a b", "-a", 'a"b', "é"])
def test_an_insane_request_id_is_replaced(client: httpx.Client, insane: str) -> None:
    answer = client.get("/livez", headers={"x-request-id": insane.encode()})
    assert answer.headers["x-request-id"].startswith("req-")


def test_two_requests_may_carry_one_id(stage: HttpStage, client: httpx.Client) -> None:
    gate = stage.executor.block()
    first = stage.post({"prompt": "a"}, **{"x-request-id": "same"})
    gate.wait_arrival()
    gate.open()
    second = client.post(URL, json={"prompt": "b"}, headers={"x-request-id": "same"})
    assert (first.result(PATIENCE_S).status_code, second.status_code) == (200, 200)


# Too much


def test_a_full_line_answers_429_with_the_seconds_to_wait() -> None:
    """Case B63."""
    with HttpStage(EngineBuilder().slots(1).queue(4)) as stage, stage.client() as client:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        waiting = stage.post({"prompt": "a", "n": 4})
        wait_until(lambda: stage.engine.snapshot().waiting == 4)
        refused = client.post(URL, json={"prompt": "a"})
        gate.open()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (error(refused)["type"], error(refused)["code"]) == ("rate_limit_error", "queue_full")
        assert (running.result(PATIENCE_S).status_code, waiting.result(PATIENCE_S).status_code) == (200, 200)


def test_n_images_are_admitted_all_or_none() -> None:
    """Case B63."""
    with HttpStage(EngineBuilder().slots(1).queue(4)) as stage, stage.client() as client:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        waiting = stage.post({"prompt": "a", "n": 3})
        wait_until(lambda: stage.engine.snapshot().waiting == 3)
        assert client.post(URL, json={"prompt": "a", "n": 2}).status_code == 429
        assert stage.engine.snapshot().waiting == 3
        gate.open()
        assert (running.result(PATIENCE_S).status_code, waiting.result(PATIENCE_S).status_code) == (200, 200)


def test_more_images_than_the_line_ever_holds_are_a_fault_of_n() -> None:
    with HttpStage(EngineBuilder().slots(1).queue(4)) as stage, stage.client() as client:
        answer = client.post(URL, json={"prompt": "a", "n": 5})
        assert (answer.status_code, error(answer)["param"]) == (400, "n")


def test_official_client_sees_a_rate_limit() -> None:
    with (
        HttpStage(EngineBuilder().slots(1).queue(1)) as stage,
        openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0) as official,
    ):
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        waiting = stage.post({"prompt": "a"})
        wait_until(lambda: stage.engine.snapshot().waiting == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            official.images.generate(prompt="a")
        gate.open()
        assert caught.value.code == "queue_full"
        assert (running.result(PATIENCE_S).status_code, waiting.result(PATIENCE_S).status_code) == (200, 200)


# Too late, and failures


def test_a_closed_door_answers_503_with_the_seconds_to_wait() -> None:
    with HttpStage() as stage, stage.client() as client:
        stage.drain.move(Door.CLOSED)
        answer = client.post(URL, json={"prompt": "a"})
        assert (answer.status_code, error(answer)["code"]) == (503, "not_admitting")
        assert answer.headers["retry-after"] == "1"


def test_a_stage_that_still_loads_answers_503() -> None:
    loading = threading.Event()

    def slow_to_load() -> PictureExecutor:
        assert loading.wait(PATIENCE_S)
        return PictureExecutor()

    with HttpStage(executor=slow_to_load, wait_ready=False) as stage, stage.client() as client:
        answer = client.post(URL, json={"prompt": "a"})
        assert (answer.status_code, error(answer)["code"]) == (503, "not_admitting")
        assert int(answer.headers["retry-after"]) >= UNTOLD_S
        assert client.get("/startupz").json()["progress"] == {"activity": "loading", "what": ""}
        assert client.get("/v1/models").json()["data"][0]["capability"] is None
        loading.set()
        stage.engine.wait_ready(PATIENCE_S)
        assert client.post(URL, json={"prompt": "a"}).status_code == 200


def test_one_image_that_fails_fails_its_request_and_ends_the_others() -> None:
    with HttpStage(executor=lambda: Failing(seed=6)) as stage, stage.client() as client:
        answer = client.post(URL, json={"prompt": "a", "n": 3, "seed": 5})
        assert (answer.status_code, error(answer)["code"]) == (500, "request_failed")
        stage.wait_idle()
        assert client.post(URL, json={"prompt": "a", "seed": 5}).status_code == 200


def test_a_failure_in_the_middle_of_a_stream_is_its_last_event() -> None:
    """Case B102."""
    with HttpStage(executor=lambda: Failing(seed=6, at_step=3)) as stage, stage.client() as client:
        body = {"prompt": "a", "seed": 6, "stream": True, "partial_images": 3, "num_inference_steps": 4}
        answer = client.post(URL, json=body)
        assert answer.status_code == 200
        *_, last, end = answer.text.removesuffix("\n\n").split("\n\n")
        name, data = last.split("\n")
        assert (name, end) == ("event: error", "data: [DONE]")
        assert json.loads(data.removeprefix("data: ")) == {
            "type": "error",
            "error": {
                "message": "RuntimeError: NaN in latents",
                "type": "server_error",
                "param": None,
                "code": "request_failed",
            },
        }


def test_the_device_lost_in_the_middle_of_a_stream_is_its_last_event() -> None:
    with HttpStage() as stage:
        gate = stage.executor.block()
        streaming = stage.post({"prompt": "a", "stream": True})
        gate.wait_arrival()
        stage.executor.die(DeviceLost("illegal memory access"))
        gate.open()
        answer = streaming.result(PATIENCE_S)
        assert answer.status_code == 200
        assert "event: error\n" in answer.text
        assert '"code":"device_lost"' in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


def test_official_client_raises_the_failure_in_the_middle_of_a_stream() -> None:
    with (
        HttpStage(executor=lambda: Failing(seed=6, at_step=3)) as stage,
        openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0) as official,
    ):
        events = official.images.generate(
            prompt="a", stream=True, partial_images=3, extra_body={"seed": 6, "num_inference_steps": 4}
        )
        with pytest.raises(openai.APIError, match="NaN in latents") as caught:
            list(events)
        assert caught.value.code == "request_failed"


def test_when_the_device_is_lost_whoever_waits_gets_503_and_so_does_who_comes_later() -> None:
    with HttpStage() as stage, stage.client() as client:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        stage.executor.die(DeviceLost("illegal memory access"))
        gate.open()
        for answer in (running.result(PATIENCE_S), client.post(URL, json={"prompt": "a"})):
            assert (answer.status_code, error(answer)["code"]) == (503, "device_lost")
            assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/livez").status_code == 503


def test_a_bug_of_ours_is_a_500_without_its_inside() -> None:
    class Broken(PictureExecutor):
        """Makes a picture of another size than it says."""

        def _picture(self, request_id: str, pixel: Output) -> Output:
            return replace(pixel, shape=(5, 5, 3))

    with HttpStage(executor=Broken) as stage, stage.client() as client:
        answer = client.post(URL, json={"prompt": "a"})
        assert answer.status_code == 500
        assert error(answer) == {
            "message": "internal error",
            "type": "server_error",
            "param": None,
            "code": "internal_error",
        }
        assert answer.headers["x-request-id"].startswith("req-")
        assert client.get("/livez").status_code == 200


class Failing(PictureExecutor):
    """Fails the requests of one seed."""

    def __init__(self, seed: int, at_step: int = 1) -> None:
        super().__init__()
        self._seed = seed
        self._at_step = at_step

    def submit(self, wave: Wave) -> None:
        """Take them in, and mark those that will fail."""
        super().submit(wave)
        for new in wave.new:
            if new.request.seed == self._seed:
                self.fail(new.request.request_id, RuntimeError("NaN in latents"), at_step=self._at_step)
