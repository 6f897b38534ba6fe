"""What the chart's notes and the pages tell people to do with it: manifests, values and labels that are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stage_api import names
from stage_api.manifest import parse_manifest
from support.helm import CHART, ROOT, needs_helm, one, render
from unit.chart.test_values import SCHEMA, VALUES

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), CHART / "README.md"])


def blocks(page: Path, language: str) -> list[str]:
    """What stands between fences of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def documents(page: Path) -> Iterator[dict[str, Any]]:
    """All that a page has in YAML."""
    for block in blocks(page, "yaml"):
        yield from (document for document in yaml.safe_load_all(block) if isinstance(document, dict))


def values(page: Path) -> list[dict[str, Any]]:
    """Values of the chart: those of a page's documents that are no object and no other program's."""
    return [document for document in documents(page) if not {"kind", "scrape_configs"} & set(document)]


def known(path: str) -> bool:
    """Whether the chart has such a value."""
    place: Any = VALUES
    for part in re.sub(r"[\[{].*", "", path).split("."):
        if not isinstance(place, dict) or part not in place:
            return False
        place = place[part]
    return True


def over(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The values with others over them, as helm has it."""
    made = dict(values)
    for key, value in given.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = over(made[key], value) if both else value
    return made


def test_the_first_stage_of_the_notes_is_sound_and_needs_no_accelerator() -> None:
    (block,) = re.findall(
        r"<<STAGE\n(.*?)^STAGE$", (CHART / "templates" / "NOTES.txt").read_text(), re.M | re.S
    )
    (stage,) = parse_manifest(block)
    assert stage.spec.accelerator == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_value_that_a_page_sets_is_one_of_the_chart_s(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    set_ = re.findall(r"--set(?:-json|-string)?[ =]'?\"?([A-Za-z][\w.]*)", text)
    assert [path for path in set_ if not known(path)] == []
    for given in values(page):
        jsonschema.Draft7Validator(SCHEMA).validate(over(VALUES, given))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_stage_of_a_page_is_a_sound_one(page: Path) -> None:
    for document in documents(page):
        if document.get("kind") == names.KIND:
            assert parse_manifest(yaml.safe_dump(document))


@needs_helm
def test_a_prometheus_that_is_set_up_by_the_page_finds_operator_and_stages() -> None:
    (config,) = [d for d in documents(ROOT / "docs" / "monitoring.md") if "scrape_configs" in d]
    jobs = {job["job_name"]: kept(job) for job in config["scrape_configs"]}
    template = one(render(), "Deployment")["spec"]["template"]
    labels = {re.sub(r"\W", "_", name): value for name, value in template["metadata"]["labels"].items()}
    (container,) = template["spec"]["containers"]
    assert jobs["omnistage-operator"] == {
        "pod_label_app_kubernetes_io_name": labels["app_kubernetes_io_name"],
        "pod_container_port_name": container["ports"][0]["name"],
    }
    rank0 = re.sub(r"\W", "_", names.LABEL_RANK0)
    assert jobs["omnistage-stages"] == {
        f"pod_label_{rank0}": "true",
        "pod_container_port_name": names.PORT_NAME,
    }


def kept(job: dict[str, Any]) -> dict[str, str]:
    """By which of their marks a job takes pods."""
    rules = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    return {rule["source_labels"][0].removeprefix("__meta_kubernetes_"): rule["regex"] for rule in rules}
