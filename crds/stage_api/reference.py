"""The reference page of the manifest: every field with its type, default and bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from stage_api import names, schema
from stage_api.base import UNREAD_RULES
from stage_api.errors import join
from stage_api.execution import executed
from stage_api.outcome import ExitCode
from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec, PodSections
from stage_api.stage import NAME_RULE, DiffusionStage
from stage_api.status import CONDITIONS

_HEAD: Final = ("Field", "Type", "Default", "Description")


def page() -> str:
    """The page as Markdown."""
    root = schema.structural(DiffusionStage)
    parts = [
        f"<!-- Generated from crds/stage_api by `python -m stage_api.crdgen`. Don't edit. -->\n# {names.KIND}",
        f"`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`, namespaced; "
        f"`kubectl get {names.SHORT_NAME}`. {root['description']}",
        f"`metadata.name` is {NAME_RULE}. A field that isn't listed here is refused by `kubectl` and by "
        "`omnistage validate`; of what other clients send, the API server drops it. A null counts as left out.",
        f"The annotation `{names.ANNOTATION_RESTART}` asks for a restart whenever it gets another value: every replica "
        "is replaced as by a rollout, and what is held goes on.",
        "## spec",
        _table(_rows(root["properties"]["spec"], "")),
        "### Rules over several fields",
        _rules(root),
        "### What a change does",
        _changes(),
        "### What this version executes",
        "The manifest describes more than can be run yet. What goes beyond these is refused, never ignored.",
        _limits(),
        "## status",
        _table(_rows(root["properties"]["status"], "")),
        "### Conditions",
        "Degraded and Failed are bad when they are True, the others when they are not. Suspended and Progressing are "
        "neither. A reason and a message say why.",
        _table(
            ((f"`{type_}`", meaning) for type_, meaning in CONDITIONS.items()), ("Type", "When it is True")
        ),
        "## Exit codes of a pod",
        _exit_codes(),
    ]
    return "\n\n".join(parts) + "\n"


def _rows(node: schema.Schema, path: str) -> Iterator[tuple[str, str, str, str]]:
    """One row a field, sections before what is in them."""
    required = node.get("required", ())
    for name, child in node.get("properties", {}).items():
        at = join(path, name)
        inner = child.get("items", child)
        default = "required" if name in required else _default(child)
        yield f"`{at}`", _kind(child), default, child.get("description", "")
        if "properties" in inner:
            yield from _rows(inner, at + "[]" if inner is not child else at)


def _kind(node: schema.Schema) -> str:
    if node.get("type") != "object":
        return schema.phrase(node).removeprefix("one of ")
    if "properties" in node:
        return "section"
    most = node.get("maxProperties")
    return schema.phrase(node) + (f" of at most {most} entries" if most else "")


def _default(node: schema.Schema) -> str:
    if "default" not in node or node.get("type") == "object":
        return ""
    return f"`{json.dumps(node['default'], ensure_ascii=False)}`"


def _rules(root: schema.Schema) -> str:
    return "\n".join(f"- `{path or 'metadata'}`: {text}." for path, text in _messages(root, ""))


def _messages(node: schema.Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in (*node.get(schema.RULES, ()), *node.get(UNREAD_RULES, ())):
        yield join(path, rule.get("fieldPath", "").removeprefix(".")), rule["message"]
    for name, child in node.get("properties", {}).items():
        yield from _messages(child, join(path, name))


def _changes() -> str:
    """Which fields replace pods, and which don't."""
    counted = {entry.alias: entry.section.replaces_pods for entry in entries(DiffusionStageSpec)}
    whole = [field for field, pods in counted.items() if pods is True]
    parts = [
        f"{field}.{part}" for field, inner in counted.items() if not isinstance(inner, bool) for part in inner
    ]
    others = [field for field in counted if field not in whole]
    return (
        f"Another value in {_listed([*whole, *parts])} is another revision, and replicas are replaced as `rollout` "
        f"says. Any other change, in {_listed(others)}, is carried out at once and replaces no pod. "
        f"Pods are told {_listed([entry.alias for entry in entries(PodSections)])}, each as it was when they were made."
    )


def _limits() -> str:
    """What this version can execute of the sections that it can't execute whole."""
    return "\n".join(
        f"- `{entry.alias}.{path}`: {executed(limit)}"
        for entry in entries(DiffusionStageSpec)
        for path, limit in entry.executable.items()
    )


def _listed(fields: list[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


def _exit_codes() -> str:
    rows = [(f"`{code.value}`", code.meaning, "yes" if code.retryable else "no") for code in ExitCode]
    return _table(rows, ("Code", "Meaning", "May a restart help"))


def _table(rows: Any, head: tuple[str, ...] = _HEAD) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
