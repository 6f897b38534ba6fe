"""A serving process from its first line to its exit code: signals, drain, death."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stage_api.outcome import ExitCode, TerminationReport
from stage_runtime.server.http.serve import CannotListen, listen, url_of
from support.http_program import DEADLY, HANGING
from support.http_stage import IMAGES_URL, wait_until
from support.scripted import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LONG = {"prompt": "a secret wish", "num_inference_steps": 50}
"""A second of work."""


class Program:
    """A running process, and what it said."""

    def __init__(self, process: subprocess.Popen[str], report: Path, askers: ThreadPoolExecutor) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._report = report
        self._askers = askers
        self.url: str = self.line("listening")["url"]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def line(self, message: str) -> dict[str, Any]:
        """The next log line with this message."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append(json.loads(text))
            if self.lines[-1]["message"] == message:
                return self.lines[-1]
        raise AssertionError(f"ended without saying {message!r}; said {self.lines}")

    def post(self, body: dict[str, object]) -> Future[httpx.Response]:
        """Ask for images in another thread."""
        return self._askers.submit(lambda: httpx.post(self.url + IMAGES_URL, json=body, timeout=PATIENCE_S))

    def running(self, body: dict[str, object]) -> Future[httpx.Response]:
        """The same, and wait until it runs."""
        asked = self.post(body)
        wait_until(lambda: 'omnistage_requests_running{stage="test"} 1.0' in self.client.get("/metrics").text)
        return asked

    def ready(self) -> bool:
        """Does it say so?"""
        return self.client.get("/readyz").status_code == 200

    def ended(self) -> tuple[int, TerminationReport | None]:
        """Its exit status and its last words, once it has ended."""
        status = self.process.wait(PATIENCE_S)
        return status, TerminationReport.decode(self._report.read_bytes()) if self._report.exists() else None


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    child = getattr(request, "param", "inline") == "child"
    with ThreadPoolExecutor(4) as askers:

        @contextmanager
        def start(**options: object) -> Iterator[Program]:
            paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "worker", "tests"))
            report = tmp_path / "report"
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.http_program",
                    json.dumps({"child": child, **options}),
                ],
                env=os.environ | {"PYTHONPATH": paths, "OMNISTAGE_TERMINATION_LOG": str(report)},
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                program = Program(process, report, askers)
                with program.client:
                    yield program
            finally:
                process.kill()
                process.wait()
                assert process.stderr is not None
                process.stderr.close()

        yield start


wherever_the_engine_lives = pytest.mark.parametrize("started", ["inline", "child"], indirect=True)


@wherever_the_engine_lives
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_finished_before_the_process_leaves_with_0(started: Any, number: signal.Signals) -> None:
    with started() as program:
        wait_until(program.ready)
        asked = program.running(LONG)
        program.process.send_signal(number)
        assert asked.result(PATIENCE_S).status_code == 200
        status, report = program.ended()
        assert (status, report) == (0, TerminationReport(exit_code=ExitCode.DRAINED, reason="Drained"))


def test_a_stopping_stage_is_unready_at_once_and_admits_for_a_while_then_refuses(started: Any) -> None:
    with started(admit_s=1.0) as program:
        wait_until(program.ready)
        asked = program.running(LONG | {"num_inference_steps": 150})
        program.process.send_signal(signal.SIGTERM)
        program.line("draining")
        assert not program.ready()
        assert program.post({"prompt": "a", "num_inference_steps": 1}).result(PATIENCE_S).status_code == 200
        answers: list[httpx.Response] = []

        def refused() -> bool:
            answers.append(program.client.post(IMAGES_URL, json={"prompt": "a", "num_inference_steps": 1}))
            return answers[-1].status_code != 200

        wait_until(refused)
        assert answers[-1].status_code == 503
        assert answers[-1].headers["retry-after"] == "1"
        assert answers[-1].json()["error"]["code"] == "not_admitting"
        assert program.client.get("/livez").status_code == 200
        assert asked.result(PATIENCE_S).status_code == 200
        assert program.ended()[0] == 0


@wherever_the_engine_lives
def test_what_does_not_finish_in_time_gets_503_and_the_process_still_leaves_with_0(started: Any) -> None:
    with started(finish_s=0.2) as program:
        wait_until(program.ready)
        asked = program.running(LONG | {"num_inference_steps": 1000})
        program.process.send_signal(signal.SIGTERM)
        assert asked.result(PATIENCE_S).status_code == 503
        assert program.ended()[0] == 0


@wherever_the_engine_lives
def test_a_tick_that_outlasts_the_drain_is_cut_off_and_the_process_leaves_with_0(started: Any) -> None:
    with started(finish_s=0.2) as program:
        wait_until(program.ready)
        asked = program.running({"prompt": "a", "seed": HANGING})
        program.process.send_signal(signal.SIGTERM)
        assert asked.result(PATIENCE_S).status_code == 503
        assert program.ended()[0] == 0


def test_an_idle_stage_leaves_at_once(started: Any) -> None:
    with started(finish_s=3600.0) as program:
        wait_until(program.ready)
        program.process.send_signal(signal.SIGTERM)
        assert program.ended()[0] == 0


def test_a_second_interrupt_ends_the_process_where_it_stands(started: Any) -> None:
    with started(finish_s=3600.0) as program:
        wait_until(program.ready)
        program.running(LONG | {"num_inference_steps": 1000})
        program.process.send_signal(signal.SIGINT)
        program.line("draining")
        program.process.send_signal(signal.SIGINT)
        assert program.ended() == (-signal.SIGINT, None)


@wherever_the_engine_lives
def test_a_lost_device_answers_who_waits_and_leaves_with_its_code(started: Any) -> None:
    """Case B22 and B23."""
    with started() as program:
        wait_until(program.ready)
        asked = program.running(LONG)
        deadly = program.post({"prompt": "a", "seed": DEADLY})
        for answer in (asked.result(PATIENCE_S), deadly.result(PATIENCE_S)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "device_lost")
        status, report = program.ended()
        assert status == ExitCode.ACCELERATOR_FAULT
        assert report is not None
        assert (report.exit_code, report.reason) == (ExitCode.ACCELERATOR_FAULT, "DeviceLost")
        assert "illegal memory access" in report.message


@wherever_the_engine_lives
def test_a_hanging_tick_answers_who_waits_and_leaves_with_its_code(started: Any) -> None:
    with started(startup_timeout_s=0.5) as program:
        wait_until(program.ready)
        asked = program.post({"prompt": "a", "seed": HANGING})
        answer = asked.result(PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_hung")
        status, report = program.ended()
        assert (status, report and report.reason) == (ExitCode.HANG, "EngineHung")


@wherever_the_engine_lives
def test_a_broken_model_leaves_with_its_code(started: Any) -> None:
    with started(broken_model=True) as program:
        status, report = program.ended()
        assert (status, report and report.message) == (ExitCode.MODEL, "no weights")


def test_a_drain_that_began_keeps_the_code_of_a_death_in_its_midst(started: Any) -> None:
    with started(admit_s=5.0) as program:
        wait_until(program.ready)
        program.running(LONG | {"num_inference_steps": 1000})
        program.process.send_signal(signal.SIGTERM)
        program.line("draining")
        program.post({"prompt": "a", "seed": DEADLY}).result(PATIENCE_S)
        assert program.ended()[0] == ExitCode.ACCELERATOR_FAULT


def test_a_log_line_tells_the_answer_and_no_prompt(started: Any) -> None:
    with started() as program:
        wait_until(program.ready)
        answer = program.client.post(
            IMAGES_URL, json=LONG | {"num_inference_steps": 1}, headers={"x-request-id": "mine"}
        )
        assert "server" not in answer.headers
        line = program.line("answered")
        while line["route"] != IMAGES_URL:
            line = program.line("answered")
        assert (line["request_id"], line["method"], line["status"], line["stage"]) == (
            "mine",
            "POST",
            200,
            "test",
        )
        program.process.send_signal(signal.SIGTERM)
        program.line("leaving")
        assert "secret" not in json.dumps(program.lines)


def test_no_host_means_ipv6_and_ipv4() -> None:
    with listen(None, 0) as listening:
        port = listening.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        if socket.has_dualstack_ipv6():
            socket.create_connection(("::1", port)).close()
        assert url_of(listening) == f"http://localhost:{port}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_address_alone_can_be_served() -> None:
    """Case B87."""
    with listen("::1", 0) as listening:
        port = listening.getsockname()[1]
        socket.create_connection(("::1", port)).close()
        assert url_of(listening) == f"http://[::1]:{port}"


@pytest.mark.parametrize("port", [70_000, -1])
@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_a_number_that_is_no_port_is_the_configs_fault(host: str | None, port: int) -> None:
    with pytest.raises(CannotListen, match="can't listen on") as refused:
        listen(host, port)
    assert refused.value.exit_code is ExitCode.CONFIG


def test_a_port_in_use_is_an_error() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(CannotListen, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])
