"""`omnistage run` of a stage with two ranks, one of which ends or hangs under load: real clients, real signals."""

from __future__ import annotations

import base64
import io
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from shapes_model.checker import check_picture
from support.stage_process import PATIENCE_S, PROMPT_S, StageProcess, is_alive, until

pytestmark = pytest.mark.timeout(400)

PROMPT = "a large red circle in the center on a white background"
LONG = 1000  # denoise steps: longer than any test waits
CLIENTS = 10  # more than there are slots
MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: pair}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, device: cpu, executor: mp, maxNumSeqs: 4}}
  parallelism: {{{axis}: 2}}
  startup: {{timeoutSeconds: 180}}
  failurePolicy: {{backoff: {{initialSeconds: 1}}}}
"""


@pytest.fixture(scope="module", params=[pytest.param("data", marks=pytest.mark.sweep), "cfg"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    folder = tmp_path_factory.mktemp("stage")
    manifest = folder / "stage.yaml"
    manifest.write_text(MANIFEST.format(axis=request.param))
    with StageProcess.running(folder=folder, manifest=manifest) as stage:
        stage.wait_ready()
        yield stage


def ask(stage: StageProcess, **body: object) -> httpx.Response:
    body = {"prompt": PROMPT, "seed": 0, **body}
    return httpx.post(f"{stage.wait_ready()}/v1/images/generations", json=body, timeout=PATIENCE_S)


def ranks_of(stage: StageProcess) -> list[psutil.Process]:
    """The processes of its ranks, the first rank first."""
    ranks = [one for one in stage.child().children() if "--rank" in one.cmdline()]
    return sorted(ranks, key=lambda one: int(one.cmdline()[one.cmdline().index("--rank") + 1]))


def under_load(stage: StageProcess, threads: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Requests that run, and some that wait for their turn."""
    answers = [threads.submit(ask, stage, num_inference_steps=LONG, seed=seed) for seed in range(CLIENTS)]
    names = ("requests_running", "requests_waiting")
    until(lambda: sum(stage.metric(name) for name in names) == CLIENTS, "all of them are there")
    return answers


def wait_for_another_life(stage: StageProcess, before: int) -> None:
    until(lambda: stage.text.count("is ready at") > before, "it is ready again", 2 * PATIENCE_S)


def assert_it_draws_what_is_asked(stage: StageProcess) -> None:
    answer = ask(stage)
    assert answer.status_code == 200, answer.text
    image = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
    verdict = check_picture(np.asarray(image), PROMPT)
    assert verdict.ok, verdict.explain()


def test_a_rank_that_is_killed_under_load_fails_its_clients_in_words_and_the_stage_lives_again(
    stage: StageProcess,
) -> None:
    """Case B22: each client gets a typed answer, no connection breaks, and another life serves."""
    lives = stage.text.count("is ready at")
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = under_load(stage, threads)
        ranks_of(stage)[1].kill()
        ends = [answer.result(PROMPT_S) for answer in answers]
    assert {(end.status_code, end.json()["error"]["code"]) for end in ends} == {(503, "engine_dead")}
    stage.wait_text("pair ended with 70: rank 1 was killed by SIGKILL", PROMPT_S)
    wait_for_another_life(stage, lives)
    assert_it_draws_what_is_asked(stage)


def test_a_rank_that_hangs_under_load_is_seen_by_its_measured_pace_and_the_stage_lives_again(
    stage: StageProcess,
) -> None:
    assert_it_draws_what_is_asked(stage)  # the pace is known
    lives = stage.text.count("is ready at")
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = under_load(stage, threads)
        for rank in ranks_of(stage):
            rank.send_signal(signal.SIGSTOP)
        ends = [answer.result(PATIENCE_S) for answer in answers]
    assert {(end.status_code, end.json()["error"]["code"]) for end in ends} == {(503, "engine_hung")}
    stage.wait_text("pair ended with 71: ", PROMPT_S)
    wait_for_another_life(stage, lives)
    assert_it_draws_what_is_asked(stage)


# Last, since it is the end of the stage.
def test_a_stage_that_had_several_lives_drains_and_leaves_nothing(stage: StageProcess) -> None:
    family = stage.family()
    assert len(family) == 4
    stage.signal(signal.SIGTERM)
    assert stage.wait(PROMPT_S) == 0
    until(lambda: not any(map(is_alive, family)), "everything has ended", PROMPT_S)
    assert list(stage.temporary.glob("omnistage-*")) == []
