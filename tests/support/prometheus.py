"""A real Prometheus, where this machine has one: it scrapes each second, and answers over its API."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from support.stage_process import ROOT, until

RULES = ROOT / "helm" / "omnistage" / "rules"
STEP_S = 1
WINDOW = "10s"
"""What stands in the place of Grafana's own choice of a rate's window."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="DASHBOARDS AND ALERTS ARE NOT TESTED: neither prometheus nor promtool is on PATH "
    "(on Debian: apt-get install prometheus)",
)


class Prometheus:
    """One process between `with` and its end, with the chart's rules loaded."""

    def __init__(self, folder: Path, targets: Mapping[str, Mapping[str, str]]) -> None:
        """`targets`: the labels of each, by host and port."""
        self._folder = folder
        self._targets = targets
        self.began_s = 0.0

    def __enter__(self) -> Self:
        config = {
            "global": {"scrape_interval": f"{STEP_S}s", "evaluation_interval": f"{STEP_S}s"},
            "rule_files": [str(path) for path in sorted(RULES.glob("*.yaml"))],
            "scrape_configs": [
                {
                    "job_name": "everything",
                    "honor_labels": True,
                    "static_configs": [
                        {"targets": [target], "labels": dict(labels)}
                        for target, labels in self._targets.items()
                    ],
                }
            ],
        }
        file = self._folder / "prometheus.json"  # which is YAML as well
        file.write_text(json.dumps(config))
        port = free_port()
        self._log = (self._folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.began_s = time.time()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        try:
            until(self._is_ready, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait(30)
        self._log.close()

    def values(self, expression: str) -> list[tuple[dict[str, str], list[float]]]:
        """Each series of an expression and its values since the start, without those that are no number."""
        query = {
            "query": expression,
            "start": str(self.began_s),
            "end": str(time.time() + STEP_S),  # the last scrape may lie behind the last step
            "step": str(STEP_S),
        }
        found = []
        for series in self._get("/api/v1/query_range", query)["result"]:
            numbers = [float(text) for _, text in series["values"]]
            found.append((series["metric"], [number for number in numbers if math.isfinite(number)]))
        return found

    def latest(self, expression: str) -> float | None:
        """The value of an expression that is one number now; None if it has none."""
        found = self._get("/api/v1/query", {"query": expression})["result"]
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its health and its alerts."""
        groups = self._get("/api/v1/rules", {})["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait_targets(self) -> None:
        """Until each has been scraped."""

        def ailing() -> list[str]:
            targets = self._get("/api/v1/targets", {})["activeTargets"]
            return [f"{one['scrapeUrl']}: {one['health']} {one['lastError']}" for one in targets]

        try:
            until(lambda: self.latest(f"sum(up) == {len(self._targets)}"), "all are scraped", 30)
        except AssertionError as late:
            raise AssertionError("\n".join(ailing())) from late

    def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        answer = self._client.get(path, params=dict(query))
        assert answer.status_code == httpx.codes.OK, f"{query}: {answer.text}"
        data: dict[str, Any] = answer.json()["data"]
        return data

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def filled_in(expression: str, variables: Sequence[str]) -> str:
    """An expression of a dashboard, with everything chosen that its variables offer."""
    for name in variables:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", WINDOW)


def pages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dashboard of the chart by its name, as Grafana gets it."""
    for path in sorted((ROOT / "helm" / "omnistage" / "dashboards").glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def expressions(page: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(title of the panel, expression with everything chosen) for each query of a dashboard."""
    chosen = [one["name"] for one in page["templating"]["list"] if one["type"] == "query"]
    for panel in page["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], filled_in(target["expr"], chosen)


def free_port() -> int:
    """A port of this machine that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
