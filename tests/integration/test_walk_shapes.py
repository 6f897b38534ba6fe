"""The whole walk: a manifest, `omnistage run`, the official client, and pictures that show what was asked for."""

from __future__ import annotations

import base64
import io
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from shapes_model.checker import check_picture
from support.stage_process import EXAMPLE, PATIENCE_S, PROMPT_S, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(300)

PROMPT = "a large red circle in the center on a white background"


@pytest.fixture(scope="module", params=["uni", "mp"])
def executor(request: pytest.FixtureRequest) -> str:
    """Where the one rank runs."""
    return str(request.param)


@pytest.fixture(scope="module")
def stage(executor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    folder = tmp_path_factory.mktemp("stage")
    manifest = folder / "shapes.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("engine:\n", f"engine:\n    executor: {executor}\n"))
    with StageProcess.running(folder=folder, manifest=manifest) as stage:
        stage.wait_ready()
        yield stage


def rank_of(stage: StageProcess, executor: str) -> psutil.Process:
    """The process that computes."""
    pod = stage.child()
    return pod if executor == "uni" else pod.children()[0]


def picture_of(b64: str | None) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(b64 or "")))
    assert image.format == "PNG"
    return np.asarray(image)


def idle(stage: StageProcess) -> bool:
    names = ("requests_running", "requests_waiting", "outstanding_cost")
    return not any(stage.metric(name) for name in names)


def test_a_picture_shows_what_the_official_client_asked_for(stage: StageProcess) -> None:
    with stage.official() as client:
        answer = client.images.generate(prompt=PROMPT, model="shapes", size="64x64", extra_body={"seed": 0})
    assert answer.data is not None
    (image,) = answer.data
    verdict = check_picture(picture_of(image.b64_json), PROMPT)
    assert verdict.ok, verdict.explain()


def test_a_run_says_where_it_listens_and_what_the_model_can_do(stage: StageProcess) -> None:
    stage.wait_text("Ctrl-C stops it")
    assert "QwenImagePipeline: up to 8 requests run together; a late one joins at the next step" in stage.text
    assert "transformer.forward: calls are merged, also for prompts of different lengths" in stage.text
    assert stage.wait_ready().startswith("http://127.0.0.1:")


def test_a_burst_is_seen_in_the_metrics_while_it_lasts_and_leaves_nothing(stage: StageProcess) -> None:
    until(lambda: idle(stage), "rest")
    before = stage.metric("requests_total", outcome="completed")
    with stage.official() as client, ThreadPoolExecutor(12) as threads:
        answers = [
            threads.submit(
                client.images.generate,
                prompt=PROMPT,
                model="shapes",
                extra_body={"seed": seed},
            )
            for seed in range(12)
        ]
        until(
            lambda: (stage.metric("requests_running"), stage.metric("requests_waiting")) == (8, 4),
            "8 run and 4 wait",
        )
        assert stage.metric("outstanding_cost") > 0
        for answer in answers:
            assert answer.result(PATIENCE_S).data
    until(lambda: idle(stage), "rest")
    assert stage.metric("requests_total", outcome="completed") - before == 12
    for kind in ("scripts", "recordings"):
        assert stage.metric("outstanding", kind=kind) == 0
    assert stage.metric("wave_size_bucket", le="8.0") > 0


def test_streamed_previews_are_pictures_that_get_closer_to_the_last(stage: StageProcess) -> None:
    with stage.official() as client:
        events = client.images.generate(
            prompt=PROMPT, model="shapes", stream=True, partial_images=3, extra_body={"seed": 3}
        )
        shown = [(event.type, picture_of(event.b64_json)) for event in events]
    kinds = [kind.removeprefix("image_generation.") for kind, _ in shown]
    assert kinds == ["partial_image", "partial_image", "partial_image", "completed"]
    *previews, final = (picture.astype(float) for _, picture in shown)
    distances = [float(np.abs(preview - final).mean()) for preview in previews]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 10, distances
    assert check_picture(final.astype(np.uint8), PROMPT).ok


def test_a_client_that_leaves_takes_its_work_with_it_within_a_step(stage: StageProcess) -> None:
    until(lambda: idle(stage), "rest")
    aborted = stage.metric("requests_total", outcome="aborted")
    body = {"prompt": PROMPT, "seed": 1, "num_inference_steps": 1000}
    left = threading.Event()

    def leave() -> None:
        with (
            httpx.Client(timeout=PATIENCE_S) as client,
            client.stream(
                "POST", f"{stage.wait_ready()}/v1/images/generations", json=body | {"stream": True}
            ),
        ):
            until(lambda: stage.metric("requests_running") == 1, "it runs")
        left.set()

    leaving = threading.Thread(target=leave)
    leaving.start()
    assert left.wait(PATIENCE_S)
    ticks = stage.metric("ticks_total")
    until(lambda: stage.metric("requests_total", outcome="aborted") == aborted + 1, "the abort", 5.0)
    until(lambda: idle(stage), "rest", 5.0)
    leaving.join(PATIENCE_S)
    # Of a thousand: the one under way, the one that cleans up, and those until a busy machine sees the socket close.
    assert stage.metric("ticks_total") - ticks <= 5


def test_only_what_computes_has_loaded_torch(stage: StageProcess, executor: str) -> None:
    run, pod, rank = stage.pid, stage.child().pid, rank_of(stage, executor).pid
    assert not {"torch", "fastapi"} & set(stage.facts(run)["modules"])
    assert "torch" in stage.facts(rank)["modules"]
    if pod != rank:
        assert not {"torch", "diffusers", "transformers"} & set(stage.facts(pod)["modules"])
        assert "fastapi" not in stage.facts(rank)["modules"]


@pytest.mark.invariant("PARALLEL-INV-004")
def test_one_rank_never_initialises_anything_distributed(stage: StageProcess, executor: str) -> None:
    with stage.official() as client:
        client.images.generate(prompt=PROMPT, model="shapes", extra_body={"num_inference_steps": 2})
    rank = rank_of(stage, executor)
    facts = stage.facts(rank.pid)
    assert "torch" in facts["modules"]
    assert not facts["distributed"]
    listening = [
        one
        for process in {stage.child(), rank}
        for one in process.net_connections()
        if one.status == "LISTEN"
    ]
    assert len(listening) == 1, "the stage listens for HTTP and for nothing else"


def test_a_run_lays_its_config_into_no_folder(stage: StageProcess) -> None:
    assert not [file for file in stage.temporary.rglob("*") if file.is_file()]


# Last, since it is the end of the stage.
def test_a_device_that_fails_ends_every_request_with_its_type_and_is_followed_by_another_life(
    stage: StageProcess, executor: str
) -> None:
    _, *family = stage.family()
    with ThreadPoolExecutor(1) as threads:
        body = {"prompt": PROMPT, "num_inference_steps": 1000}
        url = f"{stage.wait_ready()}/v1/images/generations"
        answer = threads.submit(httpx.post, url, json=body, timeout=PATIENCE_S)
        until(lambda: stage.metric("requests_running") == 1, "it runs")
        rank_of(stage, executor).send_signal(signal.SIGUSR2)
        failed = answer.result(PATIENCE_S)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "device_lost")
    stage.wait_text("shapes ended with 72: .*poisoned by a test")
    until(lambda: not any(map(is_alive, family)), "everything has ended", PROMPT_S)
    stage.wait_text(r"shapes starts again in \d+ s")
    stage.press_ctrl_c()
    assert stage.wait(PROMPT_S) == 0
