"""A model comes from the hub into the folder that the stage reads, or the pod says why not.

Each fetch is the pod's own command in a process of its own, against a server on this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stage_api import names
from stage_api.config import StageConfig
from stage_api.outcome import ExitCode, TerminationReport
from support.fake_hub import FakeHub
from support.stages import COMMIT, stage_of

REPO = "org/flux"
FILES = {
    "model_index.json": b'{"_class_name": "FluxPipeline"}',
    "unet/config.json": b"{}",
    "unet/weights.safetensors": bytes(range(256)) * 4096,
    "README.md": b"# Flux",
}
WAIT_S = 60


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(REPO, COMMIT, FILES) as hub:
        yield hub


class Pod:
    """The folders of a pod, and its command that fetches."""

    def __init__(self, root: Path, **source: Any) -> None:
        self.root, self.folder = root, root / "models" / "flux"
        self._report = root / "report"
        self.limit_s = 30
        self.source = {"repo": REPO, "revision": COMMIT, **source}

    def start(self, **environ: str) -> subprocess.Popen[str]:
        stage = stage_of(
            model={"source": {"huggingFace": self.source}}, startup={"fetchTimeoutSeconds": self.limit_s}
        )
        config = self.root / names.CONFIG_FILE
        config.write_text(StageConfig.from_stage(stage).encode())
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "OMNISTAGE_"))}
        env |= {
            "HOME": str(self.root),
            "OMNISTAGE_CONFIG": str(config),
            "OMNISTAGE_MODEL_DIR": str(self.folder),
            "OMNISTAGE_TERMINATION_LOG": str(self._report),
            "OMNISTAGE_EPOCH": "7",
            **environ,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "stage_runtime", "fetch"], env=env, stderr=subprocess.PIPE, text=True
        )

    def fetch(self, **environ: str) -> int:
        process = self.start(**environ)
        _, self.log = process.communicate(timeout=WAIT_S)
        return process.returncode

    @property
    def report(self) -> TerminationReport:
        report = TerminationReport.decode(self._report.read_bytes())
        assert report is not None
        return report

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        named = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}
        return {name: data for name, data in named.items() if not name.startswith(".")}


def test_all_files_come_as_they_are(hub: FakeHub, tmp_path: Path) -> None:
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == 0, pod.log
    assert pod.files() == FILES


def test_only_chosen_files_come(hub: FakeHub, tmp_path: Path) -> None:
    pod = Pod(tmp_path, endpoint=hub.url, allowPatterns=["unet/", "*.json"], ignorePatterns=["*.safetensors"])
    assert pod.fetch() == 0, pod.log
    assert set(pod.files()) == {"model_index.json", "unet/config.json"}


def test_what_was_fetched_is_not_asked_for_again(hub: FakeHub, tmp_path: Path) -> None:
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == 0
    asked = len(hub.asked)
    assert pod.fetch() == 0
    assert len(hub.asked) == asked


def test_a_file_that_got_lost_comes_again_and_no_other(hub: FakeHub, tmp_path: Path) -> None:
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == 0
    (pod.folder / "README.md").write_bytes(b"#")
    hub.asked.clear()
    assert pod.fetch() == 0
    assert pod.files() == FILES
    assert {path.rsplit("/", 1)[1] for method, path in hub.asked if "/resolve/" in path} == {"README.md"}


def test_a_cut_line_is_taken_up_where_it_was_cut(hub: FakeHub, tmp_path: Path) -> None:
    whole = sum(map(len, FILES.values()))
    hub.cut_after = 300_000
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == 0, pod.log
    assert pod.files() == FILES
    assert hub.served_bytes <= whole + 300_000


def test_a_hub_that_is_busy_is_asked_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.refuse = [503]
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == 0, pod.log
    assert pod.files() == FILES


def test_the_stages_token_is_the_only_one_that_is_used(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES, token="secret-token") as hub:
        pod = Pod(tmp_path, endpoint=hub.url)
        assert pod.fetch(HF_TOKEN="secret-token") == ExitCode.MODEL
        assert "may not be read without a token" in pod.report.message


def fetch_with(token: str, hub: FakeHub, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a fetch with that token says; a token's own place is a path that only a pod has."""
    script = (
        "import sys, time; from pathlib import Path; from stage_api.source import HuggingFaceSource\n"
        "from stage_runtime.core.errors import ModelError\n"
        "from stage_runtime.pipelines.fetch import fetch\n"
        "url, folder, repo, revision, token = sys.argv[1:]\n"
        "source = HuggingFaceSource(repo=repo, revision=revision, endpoint=url)\n"
        "try: fetch(source, Path(folder), token=token, deadline_s=time.monotonic() + 30)\n"
        "except ModelError as error: sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", script, hub.url, str(folder), REPO, COMMIT, token]
    env = {**os.environ, "HF_HUB_OFFLINE": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S, env=env)


def test_a_token_opens_what_is_not_public(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES, token="secret-token") as hub:
        done = fetch_with("secret-token", hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "README.md").read_bytes() == FILES["README.md"]


def test_a_token_that_the_hub_refuses_is_said_to_be_refused(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES, token="secret-token") as hub:
        done = fetch_with("wrong-token", hub, tmp_path)
    assert done.returncode == 1
    assert f"the hub refused the stage's token for {REPO}: 401" in done.stderr
    assert "wrong-token" not in done.stderr
    assert len(hub.asked) == 1, "another try would end the same way"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"repo": "org/other"}, "org/other"),
        ({"revision": "f" * 40}, "f" * 40),
        ({"allowPatterns": ["*.gguf"]}, "has no file that allowPatterns and ignorePatterns leave"),
    ],
)
def test_a_model_that_is_not_there_is_never_tried_again(
    hub: FakeHub, tmp_path: Path, source: dict[str, Any], told: str
) -> None:
    pod = Pod(tmp_path, endpoint=hub.url, **source)
    assert pod.fetch() == ExitCode.MODEL, pod.log
    assert pod.report.exit_code is ExitCode.MODEL
    assert pod.report.epoch == 7
    assert told in pod.report.message


def test_a_hub_that_can_not_be_reached_may_be_tried_in_another_life(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES) as hub:
        gone = hub.url
    pod = Pod(tmp_path, endpoint=gone)
    pod.limit_s = 3
    assert pod.fetch() == ExitCode.RANK_DIED, pod.log
    assert pod.report.reason == "FetchFailed"


def test_a_folder_that_can_not_be_made_is_told_at_once(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    pod = Pod(tmp_path, endpoint=hub.url)
    assert pod.fetch() == ExitCode.RANK_DIED, pod.log
    assert pod.report.message == f"{pod.folder} is no folder"
    assert "trying again" not in pod.log


def test_pods_that_share_a_volume_do_not_spoil_each_others_files(hub: FakeHub, tmp_path: Path) -> None:
    pod = Pod(tmp_path, endpoint=hub.url)
    both = [pod.start(), pod.start()]
    assert [process.communicate(timeout=WAIT_S)[1] and process.returncode for process in both] == [0, 0]
    assert pod.files() == FILES


def test_a_fetch_that_is_stopped_does_not_pass_for_one_that_is_done(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES) as hub:
        hub.refuse = [503] * 1000
        process = Pod(tmp_path, endpoint=hub.url).start()
        deadline_s = time.monotonic() + WAIT_S
        while not hub.asked and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_fetch_has_its_time_and_no_more(tmp_path: Path) -> None:
    with FakeHub(REPO, COMMIT, FILES) as hub:
        hub.refuse = [503] * 1000
        pod = Pod(tmp_path, endpoint=hub.url)
        pod.limit_s = 2
        assert pod.fetch() == ExitCode.RANK_DIED
    assert "could not be fetched" in pod.report.message


def test_a_stage_with_another_source_has_nothing_to_fetch(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    config = tmp_path / "other.json"
    config.write_text(StageConfig.from_stage(stage_of()).encode())
    assert pod.fetch(OMNISTAGE_CONFIG=str(config)) == ExitCode.CONFIG
    assert "model.source: expected huggingFace, to fetch it, got embedded" in pod.report.message


def test_a_fetch_loads_no_torch() -> None:
    script = "import sys, stage_runtime.pipelines.fetch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_S)
