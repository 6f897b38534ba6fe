"""Our commands as real processes: what they print can be waited for, and nothing of them outlives a test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import openai
import psutil

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "shapes.yaml"
CHECKPOINT = ROOT / "models" / "shapes" / "checkpoint"
INSPECTED = Path(__file__).with_name("inspected")
PATIENCE_S = 100.0
"""For whatever has to come; a start includes the import of torch on a busy machine."""
PROMPT_S = 20.0
"""For what has to come at once, on a busy machine too."""
_LOOK_EVERY_S = 0.02

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first true value that `condition` gives."""
    deadline_s = time.monotonic() + patience_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {patience_s} s: {what}"
        pause.wait(_LOOK_EVERY_S)
    return value


def omnistage(*arguments: object, patience_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """One `omnistage` command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "stage_runtime.cli", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )


def environment(**more: str) -> dict[str, str]:
    """What a child gets: this process's, with the repository's sources on its path."""
    path = ":".join(map(str, (INSPECTED, ROOT / "crds", ROOT / "worker")))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


class StageProcess:
    """A serving command between `with` and its end: `omnistage run`, or what a pod runs."""

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        module: str = "stage_runtime.cli",
        wrapper: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` is its own: temporary files, termination report and facts are there. `wrapper` runs the command."""
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._command = [*wrapper, sys.executable, "-m", module, *map(str, arguments)]
        self._env = environment(
            TMPDIR=str(self.temporary),
            OMNISTAGE_TEST_FACTS=str(folder),
            OMNISTAGE_TERMINATION_LOG=str(folder / "report.json"),
            **(env or {}),
        )
        self._text = ""
        self._told = threading.Condition()
        self.began_s = 0.0
        self._url = ""

    @classmethod
    def running(cls, *arguments: object, folder: Path, manifest: Path = EXAMPLE) -> Self:
        """`omnistage run` of a manifest on a free port."""
        return cls("run", manifest, "--port", 0, *arguments, folder=folder)

    @classmethod
    def pod(cls, config: str, folder: Path, **more: Any) -> Self:
        """A pod's command on a free port, with the text of its config."""
        file = folder / "stage.json"
        file.write_text(config)
        arguments = ("serve", "--config", file, "--host", "127.0.0.1", "--port", 0)
        return cls(*arguments, folder=folder, module="stage_runtime", **more)

    def __enter__(self) -> Self:
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name="stage-output")
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.family():
            process.kill()
        self._process.kill()
        self._process.wait(PATIENCE_S)
        # A pipe ends when the last of those who hold it does.
        self._reader.join(PATIENCE_S)
        assert not self._reader.is_alive(), "something still holds the output of the stage"
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self._process.pid

    @property
    def text(self) -> str:
        """All that it has printed so far."""
        return self._text

    @property
    def report(self) -> dict[str, Any]:
        """The termination report."""
        value = json.loads((self.folder / "report.json").read_text())
        assert isinstance(value, dict)
        return value

    def family(self) -> list[psutil.Process]:
        """The command and what it started, as far as they live."""
        try:
            parent = psutil.Process(self.pid)
            return [one for one in (parent, *parent.children(recursive=True)) if is_alive(one)]
        except psutil.NoSuchProcess:
            return []

    def child(self) -> psutil.Process:
        """The pod command that `omnistage run` started, once it is there."""
        return until(lambda: psutil.Process(self.pid).children(), "a child")[0]

    def wait_text(self, pattern: str, patience_s: float = PATIENCE_S) -> re.Match[str]:
        """The first match of `pattern` in what it prints."""
        with self._told:
            found = self._told.wait_for(lambda: re.search(pattern, self._text), patience_s)
        assert found, f"no {pattern!r} in:\n{self._text}"
        return found

    def wait_ready(self) -> str:
        """Its URL, once it answers on /readyz with 200."""
        if not self._url:
            self._url = self.wait_text(r"is ready at (http://[^/\s]+)").group(1)
            assert httpx.get(f"{self._url}/readyz").status_code == 200
        return self._url

    def wait_pod_ready(self) -> str:
        """The URL of a pod's command, which tells it in its log only, once it answers on /readyz with 200."""
        if not self._url:
            url = self.wait_text(r'"url": "(http://[^"]+)"').group(1)
            until(lambda: httpx.get(f"{url}/readyz").status_code == httpx.codes.OK, "it is ready")
            self._url = url
        return self._url

    def signal(self, number: signal.Signals) -> None:
        """Send it to the command."""
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the command's process group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        return self._process.wait(patience_s)

    def facts(self, pid: int) -> dict[str, Any]:
        """What a process of the family has loaded: `modules` and whether `distributed` is initialised."""
        os.kill(pid, signal.SIGUSR1)
        file = self.folder / f"{pid}.json"
        until(file.exists, f"facts of {pid}")
        value = json.loads(file.read_text())
        file.unlink()
        assert isinstance(value, dict)
        return value

    def official(self) -> openai.OpenAI:
        """OpenAI's client of it."""
        return openai.OpenAI(
            base_url=f"{self.wait_ready()}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
        )

    def metric(self, name: str, **labels: str) -> float:
        """One value of /metrics."""
        text = httpx.get(f"{self.wait_ready()}/metrics", timeout=PATIENCE_S).text
        for line in text.splitlines():
            if line.startswith(f"omnistage_{name}{{") and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no omnistage_{name} {labels} in:\n{text}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._told:
                self._text += line
                self._told.notify_all()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
