"""Every expression of a dashboard or an alert, on a real Prometheus that scraped real stages while all went on.

One stage has its rank in the engine's process and is asked for more than it can take; another has two ranks, loses
one of them and comes back.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from support.prometheus import RULES, Prometheus, expressions, free_port, needs_prometheus, pages
from support.stage_process import PATIENCE_S, ROOT, StageProcess, environment, until

pytestmark = [needs_prometheus, pytest.mark.timeout(300)]

MANIFEST = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: {name}}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, mode: step, executor: {executor}, maxNumSeqs: 2, maxQueueSize: 4}}
  parallelism: {{data: {data}}}
  failurePolicy: {{backoff: {{initialSeconds: 1}}}}
"""
DRAWING = {"prompt": "a red circle", "seed": 0, "num_inference_steps": 20}
LONG = {**DRAWING, "num_inference_steps": 1000}
CROWD = 16


class Asked:
    """A client of one stage that counts what it got."""

    def __init__(self, stage: StageProcess) -> None:
        self._url = f"{stage.wait_ready()}/v1/images/generations"
        self.codes: list[int] = []

    def post(self, body: dict[str, object], timeout_s: float = PATIENCE_S) -> None:
        """Ask; a timeout is a client that leaves."""
        try:
            self.codes.append(httpx.post(self._url, json=body, timeout=timeout_s).status_code)
        except httpx.ReadTimeout:
            self.codes.append(499)

    def crowd(self) -> None:
        """More at once than there is room for."""
        with ThreadPoolExecutor(CROWD) as pool:
            list(pool.map(lambda _: self.post(DRAWING), range(CROWD)))


def manifest(folder: Path, name: str, executor: str, data: int) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(MANIFEST.format(name=name, executor=executor, data=data))
    return file


@contextmanager
def operator_metrics(log: Path) -> Iterator[str]:
    """Host and port of an operator's metrics."""
    path = ":".join(str(ROOT / part) for part in ("crds", "operator", "tests"))
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.operator_program", str(port := free_port())],
            env=environment() | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline(), log.read_text()
                yield f"127.0.0.1:{port}"
            finally:
                process.stdin.close()
                process.wait(PATIENCE_S)


def lose_a_rank(stage: StageProcess, asked: Asked, prometheus: Prometheus) -> None:
    """Kill a rank under a request, and wait until the next life serves and was scraped."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(asked.post, LONG)
        until(lambda: prometheus.latest('sum(omnistage_requests_running{stage="pair"}) > 0'), "it runs")
        ranks = psutil.Process(stage.child().pid).children()
        assert len(ranks) == 2
        ranks[-1].kill()
        under_way.result(PATIENCE_S)
    stage.wait_text(r"(?s)starts again, .*is ready at")
    asked.post(DRAWING)
    until(lambda: prometheus.latest('max(omnistage_epoch{stage="pair"}) == 1'), "its next life was scraped")


class Run:
    """What happened, and who watched."""

    def __init__(self, prometheus: Prometheus, crowded: Asked, pair: Asked) -> None:
        self.prometheus = prometheus
        self.crowded = crowded
        self.pair = pair


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All of it, once."""
    folder = tmp_path_factory.mktemp("run")
    with ExitStack() as stack:
        stages = []
        for name, executor, data in (("crowded", "uni", 1), ("pair", "mp", 2)):
            own = folder / name
            own.mkdir()
            file = manifest(folder, name, executor, data)
            stages.append(stack.enter_context(StageProcess.running(folder=own, manifest=file)))
        operator = stack.enter_context(operator_metrics(folder / "operator.log"))
        crowded, pair = map(Asked, stages)
        targets = {operator: {"pod": "operator-a"}}
        for stage, name in zip(stages, ("crowded", "pair"), strict=True):
            target = stage.wait_ready().removeprefix("http://")
            targets[target] = {"namespace": "art", "pod": f"{name}-0", "replica": "0"}
        prometheus = stack.enter_context(Prometheus(folder, targets))
        prometheus.wait_targets()
        crowded.crowd()
        crowded.post({"prompt": 7})
        crowded.post(LONG, timeout_s=1.0)
        crowded.crowd()
        pair.crowd()
        lose_a_rank(stages[1], pair, prometheus)
        done = crowded.codes.count(200)
        total = 'sum(omnistage_requests_total{stage="crowded",outcome="completed"})'
        until(lambda: prometheus.latest(f"{total} == {done}"), "the last answer was scraped")
        yield Run(prometheus, crowded, pair)


@pytest.mark.parametrize(
    ("title", "expression"),
    [
        pytest.param(title, expression, id=f"{name}: {title}")
        for name, page in pages()
        for title, expression in expressions(page)
    ],
)
def test_every_panel_shows_something(title: str, expression: str, run: Run) -> None:
    series = run.prometheus.values(expression)
    assert any(numbers for _, numbers in series), f"{title}: {expression}"


def test_the_counts_are_those_of_what_clients_saw(run: Run) -> None:
    codes = run.crowded.codes
    assert set(codes) == {200, 400, 429, 499}
    for code in (400, 429, 499):
        counted = run.prometheus.latest(f'sum(omnistage_answers_total{{stage="crowded",code="{code}"}})')
        assert counted == codes.count(code), code
    outcomes = {
        outcome: run.prometheus.latest(
            f'sum(omnistage_requests_total{{stage="crowded",outcome="{outcome}"}})'
        )
        for outcome in ("completed", "aborted", "rejected", "failed")
    }
    assert outcomes == {
        "completed": codes.count(200),
        "aborted": codes.count(499),
        "rejected": codes.count(429),
        "failed": 0,
    }


def test_a_lost_rank_is_a_new_epoch_of_as_many_ranks(run: Run) -> None:
    assert 503 in run.pair.codes
    (_, epochs) = run.prometheus.values('omnistage_epoch{stage="pair"}')[0]
    assert (epochs[0], epochs[-1]) == (0, 1)
    assert run.prometheus.latest('max(omnistage_world_size{stage="pair"})') == 2
    assert len(run.prometheus.values('omnistage_rank_memory_bytes{stage="pair"}')) == 2


def test_every_rule_is_evaluated_and_its_words_can_be_filled_in(run: Run) -> None:
    rules = run.prometheus.rules()
    assert len(rules) > 20
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
    told = [
        text for rule in rules for alert in rule.get("alerts", ()) for text in alert["annotations"].values()
    ]
    assert not [text for text in told if "error" in text.lower() and "{{" in text]


@pytest.mark.parametrize("path", sorted(RULES.glob("*.yaml")), ids=lambda path: path.stem)
def test_whatever_an_alert_looks_at_is_there(path: Path, run: Run) -> None:
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    text = "\n".join(rule["expr"] for group in groups for rule in group["rules"])
    selectors = set(re.findall(r"\bomnistage[\w:]+(?:\{[^}]*\})?", text))
    # These are there only while something is wrong.
    lenient = {re.sub(r',?(?:reason|code)=~?"[^"]*"', "", one) for one in selectors}
    rare = {one for one in lenient if "watch_restarts" in one or "ghosts" in one}
    assert [one for one in sorted(lenient - rare) if not run.prometheus.values(one)] == []
