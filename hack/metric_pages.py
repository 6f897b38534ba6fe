"""Write what is said about monitoring from the code: the list of metrics, and the table of alerts.

python hack/metric_pages.py            write both
python hack/metric_pages.py --check    fail if a page differs from the code
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from stage_api.replica_status import ReplicaPhase
from stage_operator.telemetry import metrics as operator_metrics
from stage_operator.values import Manifest
from stage_runtime import metrics as stage_metrics
from stage_runtime.core.control import RankHealth
from stage_runtime.engine.phase import Phase, Progress
from stage_runtime.sched.base import Snapshot

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = "docs/reference/metrics.md"
MONITORING: Final = "docs/monitoring.md"
RULES: Final = ROOT / "helm" / "omnistage" / "rules"
BEGIN: Final = "<!-- alerts, written by hack/metric_pages.py -->\n"
END: Final = "<!-- end of alerts -->\n"
CLOSED: Final = frozenset({"outcome", "reason", "code", "phase"})
"""Labels of a stage's metrics whose values are worth listing."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    drifted = []
    for name, text in generated().items():
        file = ROOT / name
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            drifted.append(name)
    for name in drifted:
        print(f"{name} differs from the code: run python hack/metric_pages.py", file=sys.stderr)
    return 1 if drifted else 0


def generated() -> dict[str, str]:
    """Every page by its path from the repository's root."""
    before, _, rest = (ROOT / MONITORING).read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {REFERENCE: reference(), MONITORING: before + BEGIN + alerts() + END + after}


def of_stage() -> list[Metric]:
    """Every family that a stage exports."""
    metrics = stage_metrics.Metrics("example")
    metrics.watch(_Stage())
    return _parsed(metrics.exposition())


def of_operator() -> list[Metric]:
    """Every family that the operator exports."""
    metrics = operator_metrics.Metrics("1")
    metrics.request("get", "pods", 200, 0.0)
    metrics.reconciled("", 0.0)
    metrics.status_written("")
    metrics.watch_restarted("pods", "")
    metrics.resynced("Pod", 1, 0.0)
    metrics.group_restarted("", 1)
    metrics.told("Normal", "")
    metrics.watch(_Operator())
    return _parsed(metrics.text())


def reference() -> str:
    """The page with all metrics."""
    return "\n".join(
        (
            "# Metrics",
            "",
            "Generated from the code by `python hack/metric_pages.py`. Don't edit.",
            "",
            "Times are seconds, sizes bytes. Label values come from closed sets, so nothing that clients send makes a "
            "series. What does not exist yet is absent, not 0. [Monitoring](../monitoring.md) says what to watch.",
            "",
            "## Of a stage",
            "",
            "At `/metrics` of the pod that serves, which speaks for all ranks of its replica. Every one has the label "
            "`stage`.",
            "",
            *_table(of_stage(), hide=frozenset({"stage"})),
            "",
            "## Of the operator",
            "",
            "At `/metrics` of its pods. Those of a stage have its `namespace` and `stage`; there are none of them "
            f"beyond {operator_metrics.MOST_STAGES} stages. Both replicas tell of all stages, what they did themselves "
            "each for itself.",
            "",
            *_table(of_operator(), hide=frozenset()),
            "",
        )
    )


def alerts() -> str:
    """A table of all alerts, and a section for each."""
    rules = [rule for path in sorted(RULES.glob("*.yaml")) for rule in _rules(path) if "alert" in rule]
    lines = ["", "| Alert | Severity | After | What has happened |", "|---|---|---|---|"]
    lines += [
        f"| [{rule['alert']}](#{rule['alert'].lower()}) | {rule['labels']['severity']} | {rule.get('for', 'at once')} "
        f"| {_plain(rule['annotations']['summary'])} |"
        for rule in rules
    ]
    for rule in rules:
        expression = str(rule["expr"]).rstrip()
        lines += [
            "",
            f"### {rule['alert']}",
            "",
            " ".join(rule["annotations"]["description"].split()),
            "",
            "```promql",
            expression,
            "```",
        ]
    return "\n".join([*lines, "", ""])


def _rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def _plain(summary: str) -> str:
    """A summary without Go's template."""
    for name in ("namespace", "stage", "replica", "reason", "resource"):
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", f"`{name}`")
    return summary.replace("{{ $value | humanizePercentage }}", "`n %`").replace("{{ $value }}", "`n`")


def _parsed(text: bytes) -> list[Metric]:
    return sorted(text_string_to_metric_families(text.decode()), key=lambda family: family.name)


def _table(families: Iterable[Metric], *, hide: frozenset[str]) -> Iterator[str]:
    yield "| Metric | Kind | Labels | What it is |"
    yield "|---|---|---|---|"
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label not in hide | {"le"}:
                    labels.setdefault(label, {})[value] = None
        told = ", ".join(_label(label, values) for label, values in labels.items())
        yield f"| `{name}` | {family.type} | {told} | {family.documentation} |"


def _label(name: str, values: Mapping[str, None]) -> str:
    listed = name in CLOSED and len(values) > 1
    return f"`{name}`: {', '.join(values)}" if listed else f"`{name}`"


class _Stage:
    """A stage of which everything is known."""

    def load(self) -> Snapshot:
        counts = dict.fromkeys(("waiting", "running", "preempted", "materialising", "live", "untold"), 0)
        return Snapshot(
            **counts,
            oldest_age_s=0.0,
            outstanding_cost=0,
            blocked_slots=0,
            capacity=1,
            queue_limit=1,
        )

    def progress(self) -> Progress:
        return Progress(1, 0.0, 1.0)

    def world(self) -> Mapping[str, int]:
        return {"world_size": 1, "epoch": 0}

    def ranks(self) -> Sequence[RankHealth]:
        return (RankHealth(rank=0, pid=1, device="cpu", allocated_bytes=0),)

    def outstanding(self) -> Mapping[str, int]:
        return {"records": 0}

    def phases(self) -> Mapping[str, bool]:
        return {phase.value: False for phase in Phase}

    def model(self) -> Mapping[str, str]:
        return dict.fromkeys(("model", "pipeline", "modality", "batches"), "")


class _Operator:
    """An operator of one stage with one replica."""

    def stages(self) -> Iterable[Manifest]:
        condition = {"type": "Ready", "status": "True", "reason": "Ready"}
        status = {"conditions": [condition], "replicaStatuses": [{"phase": ReplicaPhase.READY.value}]}
        return ({"metadata": {"namespace": "default", "name": "example"}, "spec": {}, "status": status},)

    def sizes(self) -> Mapping[str, int]:
        return {"Pod": 1}

    def depth(self) -> int:
        return 0

    def oldest_s(self) -> float:
        return 0.0

    def failing(self) -> int:
        return 0

    def leads(self) -> bool:
        return True

    def lag_s(self) -> float:
        return 0.0


if __name__ == "__main__":
    sys.exit(main())
