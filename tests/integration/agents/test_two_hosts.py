"""A replica over two hosts that only share a cable: it comes up, draws, and dies as a whole."""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from stage_api.config import StageConfig
from stage_runtime.ipc.sockets import HEARTBEAT_MS, VANISHED_MS
from support.far_pod import key_folder, pod_environ, two_pods
from support.mp_stage import PATIENCE_S, a_config, a_drawing, serving
from support.namespaces import Host, two_hosts
from support.stage_process import PROMPT_S, StageProcess, until

pytestmark = pytest.mark.timeout(300)

EPOCH = 3
PROMPT = "a red circle"
NOTICED_S = (VANISHED_MS + HEARTBEAT_MS) / 1000
LEAVES_S = 10.0
"""For answers to get out and processes to end, on a busy machine."""


@dataclass
class Site:
    """Two hosts, and what runs on them."""

    first: Host
    second: Host
    keys: Path
    folder: Path
    stack: ExitStack

    def pod(
        self, config: StageConfig, ordinal: int, *, epoch: int = EPOCH, keys: Path | None = None
    ) -> StageProcess:
        """A pod's command, on the host of its ordinal."""
        folder = self.folder / f"pod-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        host = (self.first, self.second)[ordinal]
        env = pod_environ(ordinal, master=self.first.name, keys=keys or self.keys, epoch=epoch)
        pod = StageProcess.pod(config.encode(), folder, wrapper=host.wrapper, env=env)
        return self.stack.enter_context(pod)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with two_hosts() as (first, second), ExitStack() as stack:
        pods = tmp_path / "pods"
        pods.mkdir()
        yield Site(first, second, key_folder(tmp_path / "keys"), pods, stack)


def url_of(pod: StageProcess) -> str:
    return pod.wait_text(r'"url": "(http://[^"]+)"').group(1)


def status(host: Host, pod: StageProcess, path: str) -> int:
    return host.call(lambda: httpx.get(url_of(pod) + path, timeout=PROMPT_S).status_code)


def wait_ready(site: Site, pod: StageProcess) -> None:
    url_of(pod)
    until(lambda: not pod.family() or status(site.first, pod, "/readyz") == 200, "ready")
    assert pod.family(), pod.text


def draw(host: Host, pod: StageProcess, **body: Any) -> httpx.Response:
    asked = {"prompt": PROMPT, "seed": 7} | body
    return host.call(
        lambda: httpx.post(f"{url_of(pod)}/v1/images/generations", json=asked, timeout=PATIENCE_S)
    )


def pixels(answer: httpx.Response) -> list[bytes]:
    assert answer.status_code == 200, answer.text
    files = [base64.b64decode(one["b64_json"]) for one in answer.json()["data"]]
    return [Image.open(io.BytesIO(file)).convert("RGB").tobytes() for file in files]


def drawn_by_one_rank(*seeds: int, steps: int, side: int) -> list[bytes]:
    with serving(a_config(executor="uni")) as engine:
        pictures = []
        for seed in seeds:
            (stream,) = engine.add([a_drawing(f"r{seed}", seed=seed, steps=steps, side=side, prompt=PROMPT)])
            pictures.append(stream.result(PATIENCE_S).output.data)
        return pictures


def rank_of(pod: StageProcess) -> psutil.Process:
    (rank,) = psutil.Process(pod.pid).children()
    return rank


def test_copies_of_a_model_on_two_hosts(site: Site) -> None:
    """Others knock while it starts; then both copies draw; then the far rank is killed while nobody asks anything."""
    config = two_pods(data=2, mode="request")
    first = site.pod(config, 0)
    until(lambda: re.search("listening", first.text), "pod 0 is up")

    strange = site.pod(config, 1, keys=key_folder(site.folder.parent / "strange"))
    assert strange.wait(PROMPT_S) == 70
    assert "has other keys than this rank" in strange.report["message"]

    old = site.pod(config, 1, epoch=EPOCH - 1)
    assert old.wait(PROMPT_S) == 70
    assert "refuses this rank: it is of life" in old.report["message"]
    assert old.report["epoch"] == EPOCH - 1

    second = site.pod(config, 1)
    wait_ready(site, first)
    assert [status(site.second, second, path) for path in ("/livez", "/readyz", "/startupz")] == [200] * 3
    assert "torch" not in second.facts(second.pid)["modules"]

    answer = draw(site.first, first, n=2, num_inference_steps=3, size="160x160")
    assert pixels(answer) == drawn_by_one_rank(7, 8, steps=3, side=160)
    assert 160 * 160 * 3 > 64 << 10, "too large for a message between processes of one host"

    rank_of(second).kill()
    killed_s = time.monotonic()
    assert (first.wait(PROMPT_S), second.wait(PROMPT_S)) == (70, 70)
    assert time.monotonic() - killed_s < LEAVES_S
    assert (first.report["reason"], first.report["rank"]) == ("EngineDeadError", 1)
    assert second.report["message"] == "rank 1 was killed by SIGKILL"


def test_guidance_over_two_hosts_until_the_cable_is_pulled(site: Site) -> None:
    config = two_pods(cfg=2)
    second = site.pod(config, 1)
    first = site.pod(config, 0)
    wait_ready(site, first)

    (far,) = pixels(draw(site.first, first, num_inference_steps=4, size="64x64"))
    (near,) = drawn_by_one_rank(7, steps=4, side=64)
    # Equal but for the last bits of a float, which may tip the rounding to a whole level.
    assert max(abs(a - b) for a, b in zip(far, near, strict=True)) <= 1

    with ThreadPoolExecutor(1) as pool:
        # Of another size than the first: how long its steps may take has not been measured.
        asked = pool.submit(draw, site.first, first, num_inference_steps=1000, size="96x96")
        until(lambda: metric(site, first, "requests_running") > 0, "it runs", PROMPT_S)
        site.second.pull_the_cable()
        pulled_s = time.monotonic()
        refused = asked.result(NOTICED_S + LEAVES_S)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
    assert (first.wait(PROMPT_S), second.wait(PROMPT_S)) == (70, 70)
    assert time.monotonic() - pulled_s < NOTICED_S + LEAVES_S
    assert first.report["message"] == "rank 1, in another pod, is gone: its connection ended"
    assert second.report["message"] == "the engine, in the replica's first pod, is gone"


def test_a_rank_of_the_other_host_that_is_stopped_hangs_in_both_pods(site: Site) -> None:
    """By the agent's word: all that the first pod sees itself is a connection that ends."""
    config = two_pods(cfg=2)
    second = site.pod(config, 1)
    first = site.pod(config, 0)
    wait_ready(site, first)
    rank_of(second).suspend()
    assert first.wait(NOTICED_S + LEAVES_S) == 71
    assert second.wait(LEAVES_S) == 71
    assert (first.report["reason"], first.report["rank"]) == ("EngineHung", 1)
    assert second.report["message"] == "rank 1 is stopped, and the engine is gone"


def metric(site: Site, pod: StageProcess, name: str) -> float:
    text = site.first.call(lambda: httpx.get(f"{url_of(pod)}/metrics", timeout=PROMPT_S).text)
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"omnistage_{name}")
    )
