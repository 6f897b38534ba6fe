"""The operator as a process of its own, and what it costs: processor, memory, requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import psutil

PREFIX: Final = "omnistage_operator_"
_LIMIT_S: Final = 60.0
_SAMPLE: Final = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WRITES: Final = frozenset({"create", "update", "apply", "patch", "delete"})

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Value by name, without the operator's prefix, and labels."""


class WatchedOperator:
    """One replica that leads."""

    def __init__(self, namespace: str, log: Path) -> None:
        """It keeps the stages of one namespace; what it says goes into `log`."""
        self._log = log
        flags = ("--worker-image=played", "--port=0", f"--namespaces={namespace}")
        lease = (f"--lease-namespace={namespace}", f"--kubeconfig={os.environ['KUBECONFIG']}")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stage_operator", *flags, *lease],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._seen = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        try:
            self._port = self._until(self._said_port, "listen")
            self._until(lambda: self.leads, "lead")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return self.scrape().get(("leader", frozenset())) == 1

    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """What it holds at present."""
        return float(self._seen.memory_info().rss / 2**20)

    def peak_mib(self) -> float:
        """The most that it ever held."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        kib = next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM"))
        return int(kib) / 2**10

    def scrape(self) -> Scrape:
        """Its metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            return parse(answer.read().decode(), PREFIX)

    def _said_port(self) -> int | None:
        for line in self._log.read_text().splitlines():
            if line.startswith("{") and (said := json.loads(line)).get("message") == "listening":
                return int(said["port"])
        return None

    def _until(self, condition: Callable[[], int | bool | None], what: str) -> int:
        deadline = time.monotonic() + _LIMIT_S
        while not (found := condition()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the operator does not {what}; see {self._log}")
            time.sleep(0.1)
        return int(found)


def parse(text: str, prefix: str) -> Scrape:
    """The samples whose names begin with the prefix."""
    found: Scrape = {}
    for line in text.splitlines():
        if line.startswith(prefix) and (sample := _SAMPLE.match(line)) is not None:
            labels = frozenset(_LABEL.findall(sample["labels"] or ""))
            found[sample["name"].removeprefix(prefix), labels] = float(sample["value"])
    return found


def since(before: Scrape, after: Scrape) -> Scrape:
    """What was added between two scrapes."""
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def total(scrape: Scrape, name: str, wanted: Callable[[dict[str, str]], bool] = lambda labels: True) -> float:
    """The sum of a metric's samples with labels that are wanted."""
    return sum(value for (its, labels), value in scrape.items() if its == name and wanted(dict(labels)))


def requests(scrape: Scrape) -> float:
    """Requests to the API server, but for the Lease's."""
    return total(scrape, "api_requests_total", lambda labels: labels["resource"] != "leases")


def writes(scrape: Scrape) -> float:
    """Those that changed something."""
    return total(
        scrape,
        "api_requests_total",
        lambda labels: labels["resource"] != "leases" and labels["verb"] in _WRITES,
    )


def quantile_s(scrape: Scrape, name: str, part: float) -> float:
    """Upper bound of a histogram's bucket in which that part of its observations is reached."""
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (its, labels), value in scrape.items()
        if its == f"{name}_bucket"
    )
    return next((bound for bound, count in buckets if buckets[-1][1] and count >= part * buckets[-1][1]), 0.0)
