"""Nulls wherever something may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stage_api import schema
from stage_api.spec import DiffusionStageSpec

Path = tuple[str, ...]

MAPS: tuple[Path, ...] = (
    ("resources", "requests", "cpu"),
    ("resources", "limits", "memory"),
    ("monitoring", "podMonitor", "labels", "team"),
    ("podTemplate", "metadata"),
    ("podTemplate", "spec"),
)
"""Keys of maps, of which the schema names none."""


def optional(node: schema.Schema | None = None, at: Path = ()) -> Iterator[Path]:
    """Every field of a spec that may be left out, sections and what is in them."""
    node = schema.structural(DiffusionStageSpec) if node is None else node
    for name, child in node.get("properties", {}).items():
        if name not in node.get("required", ()):
            yield (*at, name)
        yield from optional(child, (*at, name))


def put(spec: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of a spec with a value at a path; sections on the way are made."""
    first, *rest = path
    inner = put(dict(spec.get(first) or {}), tuple(rest), value) if rest else value
    return {**spec, first: inner}


def nulled(source: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """A spec of this source with a null for each field that may be left out, and how many there are.

    A section that may be left out has nulls inside, unless it demands something of who writes it.
    """
    spec: dict[str, Any] = {"model": {"source": source}}
    told = 0
    for path in (*_leaves(schema.structural(DiffusionStageSpec)), *MAPS):
        if path[:2] != ("model", "source") and path != ("podTemplate",):
            spec, told = put(spec, path, None), told + 1
    return spec, told


def _leaves(node: schema.Schema, at: Path = ()) -> Iterator[Path]:
    required = node.get("required", ())
    for name, child in node["properties"].items():
        may_go = name not in required
        if "properties" in child and not (may_go and child.get("required")):
            yield from _leaves(child, (*at, name))
        elif may_go:
            yield (*at, name)
