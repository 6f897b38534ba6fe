"""GET /metrics under load: true at the moment of the scrape, and never more series than at the start."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from support.builders import EngineBuilder
from support.http_stage import IMAGES_URL, HttpStage, wait_until
from support.scripted import PATIENCE_S

MAX_EXPOSITION_BYTES = 200_000


def scraped(stage: HttpStage) -> dict[tuple[str, str], float]:
    """Each sample by its name and the labels beside `stage`, joined."""
    with stage.client() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "stage")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_gauges_tell_the_load_while_a_tick_runs() -> None:
    with HttpStage(EngineBuilder().slots(1)) as stage:
        gate = stage.executor.block()
        asked = [stage.post({"prompt": "a", "num_inference_steps": 10})]
        gate.wait_arrival()
        asked.append(stage.post({"prompt": "b", "n": 3, "num_inference_steps": 10}))
        wait_until(lambda: stage.engine.snapshot().waiting == 3)
        seen = scraped(stage)
        assert seen["omnistage_requests_running", ""] == 1
        assert seen["omnistage_requests_waiting", ""] == 3
        assert seen["omnistage_oldest_waiting_age_seconds", ""] > 0
        assert seen["omnistage_outstanding_cost", ""] == 4 * 10 * 64 * 64
        assert seen["omnistage_outstanding", "records"] == 4
        assert seen["omnistage_slots", ""] == 1
        assert 0 < seen["omnistage_tick_elapsed_seconds", ""] < seen["omnistage_tick_limit_seconds", ""]
        gate.open()
        assert [one.result(PATIENCE_S).status_code for one in asked] == [200, 200]


def test_an_idle_stage_shows_that_it_holds_nothing() -> None:
    with HttpStage() as stage:
        assert stage.post({"prompt": "a", "n": 3}).result(PATIENCE_S).status_code == 200
        stage.wait_idle()
        seen = scraped(stage)
        assert seen["omnistage_requests_total", "completed"] == 3
        assert seen["omnistage_encode_seconds_count", ""] == 3
        assert seen["omnistage_ticks_total", ""] >= 20
        assert [seen[f"omnistage_{name}", ""] for name in ("requests_running", "requests_waiting")] == [0, 0]
        assert seen["omnistage_outstanding_cost", ""] == 0
        held = {kind: value for (name, kind), value in seen.items() if name == "omnistage_outstanding"}
        assert held == {"records": 0, "untold": 0, "scripts": 0}


def test_answers_are_counted_by_status_and_probes_are_not() -> None:
    with HttpStage() as stage, stage.client() as client:
        for path in ("/livez", "/readyz", "/metrics"):
            client.get(path)
        client.get("/v1/models")
        client.post(IMAGES_URL, json={"prompt": 7})
        client.get("/nothing")
        seen = scraped(stage)
        answers = {code: n for (name, code), n in seen.items() if name == "omnistage_answers_total" and n}
        assert answers == {"200": 1, "400": 1, "404": 1}


def test_the_phase_and_the_model_are_told() -> None:
    with HttpStage() as stage:
        seen = scraped(stage)
        present = [phase for (name, phase), value in seen.items() if name == "omnistage_phase" and value]
        assert present == ["ready"]
        assert seen["omnistage_model_info", "true,image,shapes,QwenImagePipeline"] == 1


def test_what_is_refused_at_the_door_is_counted_in_outputs() -> None:
    with HttpStage(EngineBuilder().slots(1).queue(2)) as stage:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        waiting = stage.post({"prompt": "a", "n": 2})
        wait_until(lambda: stage.engine.snapshot().waiting == 2)
        assert stage.post({"prompt": "a", "n": 2}).result(PATIENCE_S).status_code == 429
        assert scraped(stage)["omnistage_requests_total", "rejected"] == 2
        gate.open()
        assert (running.result(PATIENCE_S).status_code, waiting.result(PATIENCE_S).status_code) == (200, 200)


def test_nothing_that_clients_send_makes_a_series() -> None:
    """Case B96."""
    with HttpStage() as stage, stage.client() as client:
        client.post(IMAGES_URL, json={"prompt": "a"})
        before = set(scraped(stage))
        for i in range(100):
            assert client.get(f"/v1/{i}/wp-login.php?x={i}").status_code == 404
            assert client.get(f"/v1/models/model-{i}").status_code == 404
            assert client.post(IMAGES_URL, json={"prompt": "a", "model": f"m{i}"}).status_code == 404
            assert client.request(f"METHOD{i}", "/livez").status_code == 405
        for side in range(8, 257, 8):
            body = {"prompt": f"p{side}", "size": f"{side}x64", "num_inference_steps": 1, "user": f"u{side}"}
            assert client.post(IMAGES_URL, json=body, headers={"x-request-id": f"r{side}"}).status_code == 200
        assert set(scraped(stage)) == before
        assert len(client.get("/metrics").content) < MAX_EXPOSITION_BYTES


def test_two_stages_may_live_in_one_process_and_one_may_come_back() -> None:
    """Case B98."""
    with HttpStage() as first, HttpStage() as second:
        assert first.post({"prompt": "a"}).result(PATIENCE_S).status_code == 200
        assert scraped(first)["omnistage_requests_total", "completed"] == 1
        assert scraped(second)["omnistage_requests_total", "completed"] == 0
    with HttpStage() as third:
        assert third.post({"prompt": "a"}).result(PATIENCE_S).status_code == 200
        assert scraped(third)["omnistage_requests_total", "completed"] == 1
