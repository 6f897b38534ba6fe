"""A spec in one form for all spellings of one wish: quantities in their shortest, defaults that follow from other
fields left out.

What pods are made of stays as the user wrote it; this is for comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from stage_api import schema
from stage_api.base import Contract
from stage_api.devices import default_resource
from stage_api.kube_values import QUANTITY_PATTERN, canonical, is_quantity
from stage_api.pod_template import without_nulls
from stage_api.resources import ResourcesSpec
from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage

_AMOUNTS: Final = ("limits", "requests")
Change = Callable[[Any], Any]
_EMPTY: Final[tuple[object, ...]] = ({}, [], None)


def canonical_spec(stage: DiffusionStage) -> DiffusionStageSpec:
    """The stage's spec in that form."""
    spec = stage.spec
    changed: dict[str, Any] = {"pod_template": _template(spec.pod_template), **_without_givens(stage)}
    for name, kind in _sections_with_quantities():
        section = changed.get(name, getattr(spec, name))
        told = section.to_json()
        short = _shortened(told, schema.structural(kind))
        if kind is ResourcesSpec:
            # Of what is limited, so much is requested unless somebody says otherwise.
            limits = short["limits"]
            short["requests"] = {name: n for name, n in short["requests"].items() if limits.get(name) != n}
        if short != told:
            changed[name] = kind.model_validate(short, by_alias=True, by_name=False)
    return spec.model_copy(update=changed)


def _without_givens(stage: DiffusionStage) -> dict[str, Any]:
    """The sections without what they say and would be so anyway."""
    spec = stage.spec
    changed: dict[str, Any] = {}
    if spec.model.name == stage.metadata.name:
        changed["model"] = spec.model.model_copy(update={"name": None})
    if spec.topology.ranks_per_pod == spec.parallelism.world_size:
        changed["topology"] = spec.topology.model_copy(update={"ranks_per_pod": None})
    if spec.resources.accelerator == default_resource(spec.engine.device):
        changed["resources"] = spec.resources.model_copy(update={"accelerator": None})
    return changed


@cache
def _sections_with_quantities() -> tuple[tuple[str, type[Contract]], ...]:
    return tuple(
        (entry.name, entry.model)
        for entry in entries(DiffusionStageSpec)
        if entry.model is not None and _has_quantities(schema.structural(entry.model))
    )


def _has_quantities(node: schema.Schema) -> bool:
    inner = (*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties"))
    return node.get("pattern") == QUANTITY_PATTERN or any(_has_quantities(one) for one in inner if one)


def _shortened(value: Any, node: schema.Schema | None) -> Any:
    """A value with each quantity that its schema knows in the shortest spelling."""
    if node is None:
        return value
    if node.get("pattern") == QUANTITY_PATTERN:
        return canonical(value)
    if isinstance(value, Mapping):
        return {key: _shortened(inner, schema.at(node, (key,))) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner, node.get("items")) for inner in value]
    return value


def _template(template: Mapping[str, Any]) -> dict[str, Any]:
    """A pod template without what says nothing, its quantities shortened where Kubernetes has any."""
    told: dict[str, Any] = without_nulls(template)
    for part in ("metadata", "spec"):
        if isinstance(inner := told.get(part), dict):
            kept = {key: value for key, value in inner.items() if value not in _EMPTY}
            told[part] = _pod(kept) if part == "spec" else kept
    return {part: value for part, value in told.items() if value not in _EMPTY}


def _pod(spec: Any) -> Any:
    made = _in(spec, "overhead", _amounts)
    made = _in(made, "resources", _requirements)
    for field in ("containers", "initContainers"):
        made = _in(made, field, _each(_container))
    return _in(made, "volumes", _each(_volume))


def _container(container: Any) -> Any:
    made = _in(container, "resources", _requirements)
    return _in(made, "env", _each(lambda one: _in(one, "valueFrom", _divided)))


def _volume(volume: Any) -> Any:
    made = _in(volume, "emptyDir", lambda inner: _in(inner, "sizeLimit", _amount))
    made = _in(made, "downwardAPI", lambda inner: _in(inner, "items", _each(_divided)))
    claim = _along(("volumeClaimTemplate", "spec", "resources"), _requirements)
    return _in(made, "ephemeral", claim)


def _divided(source: Any) -> Any:
    return _in(source, "resourceFieldRef", lambda inner: _in(inner, "divisor", _amount))


def _requirements(resources: Any) -> Any:
    for field in _AMOUNTS:
        resources = _in(resources, field, _amounts)
    return resources


def _amounts(amounts: Any) -> Any:
    return {name: _amount(one) for name, one in amounts.items()} if isinstance(amounts, dict) else amounts


def _amount(value: Any) -> Any:
    """What is no quantity, the API server says."""
    return canonical(value) if is_quantity(value) else value


def _in(node: Any, field: str, change: Change) -> Any:
    """A mapping with one of its fields changed, if it has it, and if it is a mapping at all."""
    if not isinstance(node, dict) or field not in node:
        return node
    inner = node[field]
    return {**node, field: change(inner) if isinstance(inner, dict | list | str | int | float) else inner}


def _each(change: Change) -> Change:
    return lambda inner: [change(one) for one in inner] if isinstance(inner, list) else inner


def _along(path: tuple[str, ...], change: Change) -> Change:
    """A change at the end of a path of mappings."""
    if not path:
        return change
    return lambda node: _in(node, path[0], _along(path[1:], change))
