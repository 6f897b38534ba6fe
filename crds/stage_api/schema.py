"""The models as structural OpenAPI schemas, and what such a schema expects, in words.

A schema made here has no references, no `anyOf` with null and no closed objects, as
CustomResourceDefinitions want it. It keeps `x-expected`, our own words for a pattern, which
`published` strips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from stage_api.base import UNREAD_RULES, Contract

Schema = dict[str, Any]

EXPECTED: Final = "x-expected"
RULES: Final = "x-kubernetes-validations"
_KEYS: Final = (
    "description", "type", "format", "enum", "default", "minimum", "maximum", "minLength", "maxLength",
    "pattern", "minItems", "maxItems", "maxProperties", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "required",
    "x-kubernetes-validations", "items", "properties", "additionalProperties",
)  # fmt: skip
"""The order of a schema's keys: what a reader asks first comes first."""
_DROPPED: Final = frozenset({"title", "additionalProperties", "$defs"})


@cache
def structural(model: type[Contract]) -> Schema:
    """The structural schema of a model. Shared: callers must not change it."""
    raw = model.model_json_schema(by_alias=True)
    return _walk(raw, raw.get("$defs", {}))


def published(schema: Schema) -> Schema:
    """A copy without what only our own messages use."""
    return {
        key: published(value) if isinstance(value, dict) else value
        for key, value in schema.items()
        if key not in (EXPECTED, UNREAD_RULES)
    }


def at(schema: Schema, loc: Sequence[int | str]) -> Schema | None:
    """The schema of the value at a location inside a document; None if there is no such place."""
    node: Schema | None = schema
    for step in loc:
        if node is None:
            return None
        if isinstance(step, int):
            node = node.get("items")
        else:
            node = node.get("properties", {}).get(step, node.get("additionalProperties"))
    return node


def phrase(schema: Schema) -> str:
    """What a schema accepts, as the words after "expected"."""
    if EXPECTED in schema:
        return str(schema[EXPECTED])
    if options := schema.get("enum"):
        return str(options[0]) if len(options) == 1 else "one of " + ", ".join(map(str, options))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        noun = "an integer" if kind == "integer" else "a number"
        return noun + _range(schema.get("minimum"), schema.get("maximum"))
    if kind == "string":
        return "a string" + _length(schema.get("minLength"), schema.get("maxLength"), "characters")
    if kind == "array":
        return "a list" + _length(schema.get("minItems"), schema.get("maxItems"), "entries")
    return {"boolean": "true or false", "object": "a mapping"}.get(str(kind), "another value")


def _range(low: int | float | None, high: int | float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f" {low} or more"
    return f" {low if low is not None else 0}..{high}"


def _length(low: int | None, high: int | None, unit: str) -> str:
    if high is None:
        return f" of at least {low} {unit}" if low else ""
    return f" of {low}..{high} {unit}" if low else f" of at most {high} {unit}"


def _walk(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """One node, resolved and stripped, with its children."""
    merged = _resolved(node, defs)
    out = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if isinstance(merged.get("additionalProperties"), dict):
        out["additionalProperties"] = _walk(merged["additionalProperties"], defs)
    if "items" in out:
        out["items"] = _walk(out["items"], defs)
    if "properties" in out:
        out["properties"] = {name: _walk(child, defs) for name, child in out["properties"].items()}
        if isinstance(out.get("default"), dict):
            # In full where there are rules: the API server judges a default before it fills in those inside.
            out["default"] = _given(out["default"]) if _has_rules(out) else {}
    if out.get("default", 0) is None:
        del out["default"]
    if out.get("type") == "integer" and "maximum" not in out:
        out.setdefault("format", "int32")
    return dict(sorted(out.items(), key=lambda item: _place(item[0])))


def _has_rules(schema: Schema) -> bool:
    return RULES in schema or any(map(_has_rules, schema.get("properties", {}).values()))


def _given(value: Any) -> Any:
    """A default without what is left out."""
    if not isinstance(value, dict):
        return value
    return {name: _given(inner) for name, inner in value.items() if inner is not None}


def _place(key: str) -> int:
    return _KEYS.index(key) if key in _KEYS else len(_KEYS)


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """A node without `$ref` and without the null of an optional; its own keys win."""
    own = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
    if "$ref" in node:
        return {**_resolved(defs[node["$ref"].rsplit("/", 1)[1]], defs), **own}
    if "anyOf" in node:
        (inner,) = (option for option in node["anyOf"] if option.get("type") != "null")
        return {**_resolved(inner, defs), **own}
    return own
