"""The alerts: promtool finds them right, each is shown to fire and to keep quiet, and each says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stage_api import status
from stage_operator.decide import conditions
from support.prometheus import RULES, needs_prometheus
from support.stage_process import ROOT

TESTS = Path(__file__).with_name("rules")
FILES = sorted(path.name for path in RULES.glob("*.yaml"))
TRIED = [name for name in FILES if name != "objectives.yaml"]


def alerts(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


ALERTS = {rule["alert"]: rule for name in FILES for rule in alerts(name)}


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=TESTS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@pytest.mark.parametrize("name", FILES)
def test_promtool_finds_nothing_wrong(name: str) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES / name))


@needs_prometheus
@pytest.mark.parametrize("name", TRIED)
def test_alerts_fire_when_they_should_and_only_then(name: str) -> None:
    promtool("test", "rules", name)


@pytest.mark.parametrize("name", TRIED)
def test_every_alert_is_tried(name: str) -> None:
    tests = yaml.safe_load((TESTS / name).read_text(encoding="utf-8"))["tests"]
    fired = {
        re.findall(r'alertname="(\w+)"', sample["labels"])[0]
        for test in tests
        for expression in test["promql_expr_test"]
        for sample in expression["exp_samples"]
    }
    assert fired == {rule["alert"] for rule in alerts(name)}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert name.startswith("Omnistage")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_conditions_and_reasons_are_the_operators_own_words() -> None:
    text = (RULES / "stages.yaml").read_text(encoding="utf-8")
    known = {value for name, value in vars(status).items() if name.isupper() and isinstance(value, str)}
    assert set(re.findall(r'condition="(\w+)"', text)) <= known
    reasons = {reason for found in re.findall(r'reason=~"([^"]+)"', text) for reason in found.split("|")}
    assert reasons == {conditions.ROLLOUT_HALTED, conditions.DEADLINE_EXCEEDED}
