"""The dashboards as files: written by their program, whole, and of metrics that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import dashboards
import metric_pages
from support.prometheus import RULES, expressions, pages
from support.stage_process import ROOT

PAGES = dict(pages())
METRIC = re.compile(r"\b((?:omnistage|process)_[a-z0-9_]+)")
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def panels() -> Iterator[Any]:
    for name, page in PAGES.items():
        for panel in page["panels"]:
            if panel["type"] != "row":
                yield pytest.param(panel, id=f"{name}: {panel['title']}")


def known() -> set[str]:
    """The series of every family that stages and operator export."""
    families = {family.name for family in (*metric_pages.of_stage(), *metric_pages.of_operator())}
    return {name + suffix for name in families for suffix in SUFFIXES}


@pytest.mark.parametrize("name", dashboards.generated())
def test_the_committed_file_is_what_its_program_writes(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == dashboards.generated()[name], "run: make generate"


@pytest.mark.parametrize("panel", list(panels()))
def test_every_panel_says_what_it_shows_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_panels_lie_side_by_side_and_never_on_each_other(page: dict[str, Any]) -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in page["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert all(x < 24 for x, _ in taken)
    ids = [panel["id"] for panel in page["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_variable_of_an_expression_is_offered(page: dict[str, Any]) -> None:
    left = [expr for _, expr in expressions(page) if "$" in expr]
    assert left == []


def test_every_metric_of_a_dashboard_or_an_alert_is_exported() -> None:
    texts = [expr for page in PAGES.values() for _, expr in expressions(page)]
    for path in RULES.glob("*.yaml"):
        groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        texts += [rule["expr"] for group in groups for rule in group["rules"]]
    named = {name for text in texts for name in METRIC.findall(re.sub(r'"[^"]*"', "", text))}
    assert named - known() == set()


@pytest.mark.parametrize("name", metric_pages.generated())
def test_the_pages_about_monitoring_are_what_the_code_says(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == metric_pages.generated()[name], "run: make generate"
