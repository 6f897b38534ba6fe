"""`omnistage control`: of a run on this machine, and of replicas on a cluster."""

from __future__ import annotations

import base64
import gzip
import json
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stage_api import names
from stage_runtime.cli import main
from stage_runtime.local.control_socket import control_socket, runs_of
from stage_runtime.remote_control.arguments import ACTIONS
from stage_runtime.remote_control.client import ControlRefused
from stage_runtime.remote_control.cluster import NoSuchStage, Pod, latest, replicas_on
from stage_runtime.remote_control.command import _ACTIONS
from support.control_server import TOKEN, ControlServer
from support.http_stage import IMAGES_URL, HttpStage
from support.port_forward import ApiServer
from support.stage_process import PATIENCE_S, PROMPT_S, StageProcess

pytestmark = pytest.mark.timeout(300)


def manifest(folder: Path, *, enabled: bool = True) -> Path:
    file = folder / "stage.yaml"
    control = "control: {enabled: true, tokenSecretRef: {name: steer}}" if enabled else ""
    file.write_text(
        "apiVersion: omnistage.io/v1alpha1\nkind: DiffusionStage\nmetadata: {name: steered}\nspec:\n"
        "  model: {source: {embedded: digits}}\n"
        f"  engine: {{dtype: float32, process: child}}\n  {control}\n"
    )
    return file


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's runs are found, and no others."""
    folder = tmp_path / "r"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def test_a_local_run_is_paused_put_to_sleep_profiled_and_starts_unpaused(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def control(*arguments: str) -> str:
        assert main(["control", "steered", *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    with (
        StageProcess.running(folder=tmp_path, manifest=manifest(tmp_path)) as stage,
        ThreadPoolExecutor(1) as asker,
    ):
        url = stage.wait_ready()

        def draw() -> int:
            body = {"prompt": "7", "num_inference_steps": 2}
            return httpx.post(url + IMAGES_URL, json=body, timeout=PATIENCE_S).status_code

        (found,) = (runtime / "omnistage").iterdir()
        assert found.stat().st_mode & 0o077 == 0
        assert found.parent.stat().st_mode & 0o077 == 0

        assert control("pause") == "steered replica 0: paused\n"
        assert "paused" in control("health")
        asked = asker.submit(draw)
        assert control("resume", "--replica", "0") == "steered replica 0: goes on\n"
        assert asked.result(PATIENCE_S) == 200

        assert "MiB freed" in control("sleep", "--level", "2")
        assert main(["control", "steered", "resume"]) == 1
        assert "sleep" in capsys.readouterr().err
        assert "MiB back" in control("wake")
        assert draw() == 200

        assert control("profile-start").endswith("recording\n")
        assert draw() == 200
        (tmp_path / "no-folder").touch()
        assert main(["control", "steered", "profile-stop", "-o", str(tmp_path / "no-folder")]) == 1
        assert "no-folder" in capsys.readouterr().err
        told = control("profile-stop", "-o", str(tmp_path / "traces"))
        (trace,) = (tmp_path / "traces" / "steered-0").iterdir()
        assert str(trace) in told
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]

        control("pause")
        stage.child().kill()
        stage.wait_text("(?s)was killed by SIGKILL.*starts again, .*is ready at")
        assert "paused" not in control("health")
        assert draw() == 200

        control("pause")
        asked = asker.submit(draw)
        while "waiting" not in httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text:
            pass
        stage.signal(signal.SIGTERM)
        assert stage.wait(PROMPT_S) == 0
        assert asked.result(PATIENCE_S) in (200, 503)
    assert list((runtime / "omnistage").iterdir()) == []


def test_a_run_whose_manifest_says_nothing_of_control_has_no_such_listener(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StageProcess.running(folder=tmp_path, manifest=manifest(tmp_path, enabled=False)) as stage:
        url = stage.wait_ready()
        assert main(["control", "steered", "pause"]) == 1
        assert "no replica of steered runs on this machine" in capsys.readouterr().err
        assert httpx.post(f"{url}/control/pause").status_code == 404


def test_a_socket_that_a_killed_run_left_is_removed(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runtime / "omnistage").mkdir(mode=0o700)
    left = runtime / "omnistage" / "steered.4194305.sock"  # no process has that number
    left.touch()
    assert main(["control", "steered", "pause"]) == 1
    assert not left.exists()


@pytest.mark.parametrize(
    "name",
    ["*", "s*", "[s]teered", "?teered", "../omnistage/steered", "../other", "/steered", "steered.x", "", "."],
)
def test_a_name_is_no_pattern_and_no_path(
    runtime: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (runtime / "omnistage").mkdir(mode=0o700)
    kept = [runtime / "omnistage" / "steered.4194305.sock", runtime / "other.4194305.sock"]
    for file in kept:
        file.touch()
    assert main(["control", name, "pause"]) == 1
    assert "no replica" in capsys.readouterr().err
    assert all(file.exists() for file in kept)


def test_a_name_that_goes_on_after_a_dot_is_another_stages(runtime: Path) -> None:
    with control_socket("steered.too") as path, control_socket("steered") as own:
        path.touch()
        own.touch()
        assert runs_of("steered") == [own]
        assert runs_of("steered.too") == [path]


def test_a_folder_that_others_may_enter_is_not_trusted(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runtime / "omnistage").mkdir()
    (runtime / "omnistage").chmod(0o777)
    assert main(["control", "steered", "pause"]) == 1
    assert "only this user may enter" in capsys.readouterr().err


def test_every_action_is_offered() -> None:
    assert tuple(_ACTIONS) == ACTIONS


# On a cluster


class House:
    """Implements `Cluster`: pods that are servers of this process."""

    namespace = "art"

    def __init__(self, servers: Mapping[str, ControlServer], control: object, key: str = "token") -> None:
        self._servers = servers
        self._control = control
        self._key = key

    def stage(self, name: str) -> Mapping[str, Any]:
        return {"spec": {"control": self._control}}

    def pods(self, stage: str) -> list[Mapping[str, Any]]:
        return [pod(name, replica) for replica, name in enumerate(self._servers)]

    def secret(self, name: str) -> Mapping[str, str]:
        return {self._key: base64.b64encode(f"{TOKEN}\n".encode()).decode()}

    def connect(self, pod: str) -> socket.socket:
        return socket.create_connection(self._servers[pod].address)


def pod(
    name: str, replica: int, epoch: int = 0, *, phase: str = "Running", going: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {names.LABEL_REPLICA: str(replica), names.LABEL_EPOCH: str(epoch)},
    }
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


ENABLED = {"enabled": True, "tokenSecretRef": {"name": "steer", "key": "token"}}


@pytest.fixture(scope="module")
def server() -> Iterator[ControlServer]:
    with HttpStage() as stage, ControlServer(stage.engine) as server:
        yield server


def test_every_replica_of_a_cluster_is_told_with_the_stages_own_token(server: ControlServer) -> None:
    replicas = replicas_on(House({"a-0-e0-0": server, "a-1-e0-0": server}, ENABLED), "a", None)
    assert list(replicas) == [0, 1]
    for client in replicas.values():
        assert client.call("POST", "/pause") == {}
        assert client.call("POST", "/resume") == {}


@pytest.mark.parametrize("token", ["two\nlines-of-a-token", "a-token-with\x00-in-it", "a-token\r\nx: y"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_told(server: ControlServer, token: str) -> None:
    with pytest.raises(ControlRefused, match="one line of text") as refused:
        replicas_on(House({"a-0-e0-0": server}, ENABLED), "a", token)
    assert "token-" not in str(refused.value)
    assert "lines" not in str(refused.value)


def test_a_wrong_token_is_refused_by_the_replica(server: ControlServer) -> None:
    (client,) = replicas_on(House({"a-0-e0-0": server}, ENABLED), "a", "wrong").values()
    with pytest.raises(ControlRefused, match="control token"):
        client.call("POST", "/pause")


@pytest.mark.parametrize("rank", ["0", "7", "-1", "x", "..%2f..%2fetc%2fpasswd", ".."])
def test_nothing_but_the_traces_of_ranks_can_be_downloaded(
    server: ControlServer, rank: Any, tmp_path: Path
) -> None:
    """None has been recorded here."""
    (client,) = replicas_on(House({"a-0-e0-0": server}, ENABLED), "a", None).values()
    with pytest.raises(ControlRefused):
        client.download(rank, tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("control", [None, {}, {"enabled": False}])
def test_a_stage_that_can_not_be_steered_is_said_to_be_so(server: ControlServer, control: object) -> None:
    with pytest.raises(NoSuchStage, match=r"spec\.control\.enabled is false"):
        replicas_on(House({"a-0-e0-0": server}, control), "a", None)


def test_a_secret_without_the_key_is_named(server: ControlServer) -> None:
    with pytest.raises(NoSuchStage, match="Secret steer in art has no key token"):
        replicas_on(House({"a-0-e0-0": server}, ENABLED, key="other"), "a", None)


def test_of_each_replica_the_running_pod_of_its_latest_life_is_told() -> None:
    pods = [
        pod("a-0-e1-0", 0, 1, going=True),
        pod("a-0-e2-0", 0, 2),
        pod("a-0-e0-0", 0, 0),
        pod("a-1-e10-0", 1, 10),
        pod("a-1-e9-0", 1, 9),
        pod("a-2-e0-0", 2, 0, phase="Pending"),
        pod("a-3-e0-0", 3, 0, phase="Failed"),
    ]
    assert latest(pods) == [Pod(0, "a-0-e2-0"), Pod(1, "a-1-e10-0")]


def objects(pods: list[dict[str, Any]]) -> dict[str, Any]:
    """What an API server has of the stage `steered`, by path."""
    token = base64.b64encode(TOKEN.encode()).decode()
    return {
        f"/apis/{names.GROUP}/{names.VERSION}/namespaces/art/{names.PLURAL}/steered": {
            "spec": {"control": ENABLED}
        },
        "/api/v1/namespaces/art/pods": {"kind": "PodList", "apiVersion": "v1", "items": pods},
        "/api/v1/namespaces/art/secrets/steer": {"data": {"token": token}},
    }


def test_a_port_forward_of_the_api_server_leads_to_every_replica(
    server: ControlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [pod("steered-0-e0-0", 0), pod("steered-1-e3-0", 1, 3)]
    ports = {one["metadata"]["name"]: server.address for one in pods}
    with ApiServer(objects(pods), ports) as api:
        where = ["--kubeconfig", str(api.kubeconfig(tmp_path, "art"))]
        assert main(["control", "steered", "pause", *where]) == 0
        assert capsys.readouterr().out == "steered replica 0: paused\nsteered replica 1: paused\n"
        assert main(["control", "steered", "resume", "--replica", "1", *where]) == 0
        assert capsys.readouterr().out == "steered replica 1: goes on\n"

        assert main(["control", "steered", "pause", "--replica", "7", *where]) == 1
        assert "no replica 7 that runs; there: 0, 1" in capsys.readouterr().err
        assert main(["control", "other", "pause", *where]) == 1
        assert "stage other in art: Not Found" in capsys.readouterr().err
        wrong = tmp_path / "token"
        wrong.write_text("another-token-than-the-stage's")
        assert main(["control", "steered", "pause", "--token-file", str(wrong), *where]) == 1
        assert (
            "steered replica 1: authorization: expected the stage's control token" in capsys.readouterr().err
        )


def test_a_pod_that_listens_no_more_is_one_replica_that_was_not_told(
    server: ControlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [pod("steered-0-e0-0", 0), pod("steered-1-e0-0", 1)]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()
    with ApiServer(objects(pods), {"steered-0-e0-0": nowhere, "steered-1-e0-0": server.address}) as api:
        where = ["--kubeconfig", str(api.kubeconfig(tmp_path, "art"))]
        assert main(["control", "steered", "resume", *where]) == 1
    said = capsys.readouterr()
    assert said.out == "steered replica 1: goes on\n"
    assert "steered replica 0: " in said.err


def test_a_cluster_that_can_not_be_reached_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["control", "steered", "pause", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "no cluster can be reached" in capsys.readouterr().err
