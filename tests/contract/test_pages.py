"""What the pages say is there: other pages, headings, files, make targets, alerts, metrics and the operator's words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from check_sizes import ROOT

INDEX = ROOT / "docs" / "README.md"
CHART = ROOT / "helm" / "omnistage"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), CHART / "README.md"])
RUNTIME, OPERATOR = ROOT / "worker/stage_runtime", ROOT / "operator/stage_operator"
OWN_ROOTS = {"architecture.md": [RUNTIME, OPERATOR], "operator.md": [OPERATOR]}
"""Pages whose paths begin elsewhere, as they say."""
TOP = "crds|constraints|docs|examples|hack|helm|models|operator|tests|worker"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def links(page: Path) -> list[tuple[Path, str]]:
    """Page or file, and heading, of each link that stays in the repository."""
    found = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text(page))
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in found]


@cache
def headings(page: Path) -> set[str]:
    """The names by which links find the headings of a page."""
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def source(*roots: str) -> str:
    """All that the code under some folders says."""
    files = (path for root in roots for path in sorted((ROOT / root).rglob("*.py")))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_every_page_is_reached_from_the_index() -> None:
    reached, todo = set[Path](), [INDEX]
    while todo:
        page = todo.pop()
        reached.add(page)
        found = {path if path.suffix == ".md" else path / "README.md" for path, _ in links(page)}
        todo += [path for path in found if path in PAGES and path not in reached]
    decisions = ROOT / "docs" / "adr"
    assert [page for page in PAGES if page not in reached and page.parent != decisions] == []


@every_page
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    lost = [(path.name, anchor) for path, anchor in links(page) if anchor and anchor not in headings(path)]
    assert lost == []


@every_page
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    code = "\n".join(re.findall(r"^```.*?^```|`[^`\n]+`", text(page), re.MULTILINE | re.DOTALL))
    named = re.findall(rf"(?<![\w/.-])(?:{TOP})/[\w.*/-]*[\w*]", code)
    if own := OWN_ROOTS.get(page.name, []):
        named += re.findall(r"(?<![\w/.-])(?:\w+/)+(?:\w+\.py)?|\w+\.py", code)
    assert [name for name in named if not any(any(root.glob(name)) for root in (ROOT, *own))] == []


def test_the_drawing_of_the_architecture_shows_every_package() -> None:
    drawing = re.findall(r"^```.*?^```", text(ROOT / "docs" / "architecture.md"), re.MULTILINE | re.DOTALL)[0]
    packages = {path.parent.name for root in (RUNTIME, OPERATOR) for path in root.glob("*/__init__.py")}
    assert packages - set(re.findall(r"(\w+)/", drawing)) == set()
    assert {"crds/stage_api", "worker/stage_runtime", "operator/stage_operator"} <= set(drawing.split())


def test_each_decision_has_a_number_of_its_own_and_says_it() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [page.name for page in pages if not text(page).startswith(f"# {int(page.name[:4])}. ")] == []


@pytest.mark.parametrize("name", ["architecture", "operator"])
def test_every_method_that_a_page_names_is_there(name: str) -> None:
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", text(ROOT / "docs" / f"{name}.md"))
    code = source("operator/stage_operator", "crds/stage_api", "worker/stage_runtime")
    assert [(k, m) for k, m in named if f"class {k}" not in code or f"def {m}(" not in code] == []


@every_page
def test_every_make_target_that_a_page_names_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", text(ROOT / "Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`|=\S+ )make ([a-z0-9]+)", text(page), re.MULTILINE))
    assert named <= targets


@every_page
def test_every_alert_and_metric_that_a_page_names_is_there(page: Path) -> None:
    alerts = set(re.findall(r"alert: (\w+)", "".join(map(text, sorted((CHART / "rules").glob("*.yaml"))))))
    metrics = set(re.findall(r"`(omnistage_\w+)`", text(ROOT / "docs" / "reference" / "metrics.md")))
    named = re.findall(r"`(Omnistage\w+|omnistage_\w+)`", text(page))
    assert [name for name in named if name not in alerts | metrics | {"omnistage_operator"}] == []


@pytest.mark.parametrize("name", ["failure-modes", "failure-policy", "install", "monitoring", "upgrade"])
def test_every_word_of_the_operator_that_a_page_names_is_one(name: str) -> None:
    words = set(re.findall(r"`(?!Omnistage)((?:[A-Z][a-z]+|OOM){2,})`", text(ROOT / "docs" / f"{name}.md")))
    known = source("operator/stage_operator", "crds/stage_api")
    refused = {f"{kind}Refused" for kind in ("Pod", "Service")}  # put together from a kind
    told = {"CreateContainerConfigError", "FailedAttachVolume", "FailedMount"}  # Kubernetes' own, passed on
    assert sorted(word for word in words - refused - told if f'"{word}"' not in known) == []
