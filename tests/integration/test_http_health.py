"""The probes tell the truth, and tell it while everything else is busy."""

from __future__ import annotations

import dataclasses
import random
import threading
import time

import httpx
import pytest

from stage_runtime.core.outcome import Modality, Output
from stage_runtime.server.http.drain import Door
from stage_runtime.server.images.encoder import to_file
from support.builders import EngineBuilder
from support.http_stage import IMAGES_URL, MODEL, HttpStage, PictureExecutor, wait_until
from support.scripted import PATIENCE_S, ManualClock

LONGEST_PROBE_S = 0.25
IMAGES = 10
SIDE = 1024
"""Pixels; encoding so many such pictures takes longer than a probe may."""


def test_an_idle_stage_is_alive_ready_and_started() -> None:
    with HttpStage() as stage, stage.client() as client:
        assert [client.get(path).status_code for path in ("/livez", "/readyz", "/startupz")] == [200] * 3


def test_a_stage_that_loads_is_alive_but_neither_started_nor_ready() -> None:
    """Case B83."""
    loading = threading.Event()

    def slow_to_load() -> PictureExecutor:
        assert loading.wait(PATIENCE_S)
        return PictureExecutor()

    with HttpStage(executor=slow_to_load, wait_ready=False) as stage, stage.client() as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 503
        started = client.get("/startupz")
        assert (started.status_code, started.json()["phase"]) == (503, "loading")
        assert started.json()["seconds"] >= 0
        loading.set()
        stage.engine.wait_ready(PATIENCE_S)
        assert client.get("/startupz").json()["phase"] == "ready"
        assert client.get("/readyz").status_code == 200


def test_a_hanging_tick_ends_liveness_until_it_moves_again() -> None:
    clock = ManualClock()
    with HttpStage(EngineBuilder().clock(clock)) as stage, stage.client() as client:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        assert client.get("/livez").status_code == 200
        clock.advance(21)
        hanging = client.get("/livez")
        assert (hanging.status_code, hanging.json()["tick_seconds"], hanging.json()["limit_seconds"]) == (
            503,
            21,
            20,
        )
        gate.open()
        assert running.result(PATIENCE_S).status_code == 200
        wait_until(lambda: client.get("/livez").status_code == 200)


def test_a_dead_engine_is_neither_alive_nor_ready() -> None:
    with HttpStage() as stage, stage.client() as client:
        stage.executor.die()
        assert stage.post({"prompt": "a"}).result(PATIENCE_S).status_code == 503
        assert [client.get(path).status_code for path in ("/livez", "/readyz", "/startupz")] == [503] * 3
        assert client.get("/livez").json()["phase"] == "dead"


def test_a_closing_door_ends_readiness_while_requests_are_still_served() -> None:
    with HttpStage() as stage, stage.client() as client:
        stage.drain.move(Door.CLOSING)
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        assert client.post(IMAGES_URL, json={"prompt": "a"}).status_code == 200


def test_probes_answer_while_a_long_tick_runs() -> None:
    with HttpStage() as stage, stage.client() as client:
        gate = stage.executor.block()
        running = stage.post({"prompt": "a"})
        gate.wait_arrival()
        assert [client.get(path).status_code for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
        gate.open()
        assert running.result(PATIENCE_S).status_code == 200


@pytest.mark.alone("it measures")
def test_probes_answer_at_once_while_big_images_are_encoded() -> None:
    """Case B24."""
    limits = dataclasses.replace(MODEL.record.limits, max_side=SIDE)
    large = dataclasses.replace(MODEL, record=dataclasses.replace(MODEL.record, limits=limits))
    picture = noise()
    with HttpStage(executor=lambda: Drawing(picture), model=large) as stage, stage.client() as client:
        asked = stage.post({"prompt": "a", "n": IMAGES, "size": f"{SIDE}x{SIDE}", "num_inference_steps": 1})
        busy_s = [probe_s(client)]
        while not asked.done():
            busy_s.append(probe_s(client))
        assert len(asked.result().json()["data"]) == IMAGES
    began_s = time.monotonic()
    to_file(picture, "png", 100)
    one_image_s = time.monotonic() - began_s
    # On the event loop, the images would hold up probes for as long as all of them take together. A machine that is
    # busy with other things may hold up one or another, too.
    held_s = sum(took_s for took_s in busy_s if took_s > LONGEST_PROBE_S)
    assert held_s < IMAGES * one_image_s / 2


def probe_s(client: httpx.Client) -> float:
    """Seconds that one probe takes."""
    began_s = time.monotonic()
    assert client.get("/livez").status_code == 200
    return time.monotonic() - began_s


def noise() -> Output:
    """A picture that takes long to encode."""
    data = random.Random(0).randbytes(SIDE * SIDE * 3)
    return Output(modality=Modality.IMAGE, data=data, shape=(SIDE, SIDE, 3), dtype="uint8")


class Drawing(PictureExecutor):
    """Gives everyone the same picture, made beforehand, so that only encoding it takes long."""

    def __init__(self, picture: Output) -> None:
        super().__init__()
        self._given = picture

    def _picture(self, request_id: str, pixel: Output) -> Output:
        return self._given
