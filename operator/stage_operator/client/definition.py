"""Whether the CustomResourceDefinition in the cluster is the one that this operator was made with, or a later one.

An older one drops fields without a word: what users ask for would be ignored, and what must be remembered of failures
would be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stage_api import names, schema
from stage_api.stage import DiffusionStage
from stage_operator.client.kube import Kube, KubeError, Missing, Refused

_JUDGED: Final = ("spec", "status")
_SHOWN: Final = 3
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_GVK: Final = "x-kubernetes-group-version-kind"


class DefinitionOlder(KubeError):
    """The cluster's definition doesn't know all fields."""


async def check_definition(kube: Kube) -> None:
    """DefinitionOlder if fields would be lost, Missing if there is no definition."""
    try:
        document = await kube.fetch(f"/openapi/v3/apis/{names.API_VERSION}")
    except Missing as error:
        raise Missing("the CustomResourceDefinition of this version is not there", code=404) from error
    except Refused:
        return  # whoever may not ask can't be told
    served = _schema_of(document)
    if lost := lacking(schema.structural(DiffusionStage), served):
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise DefinitionOlder(
            "the CustomResourceDefinition is older than this operator, and has no "
            + ", ".join(lost[:_SHOWN])
            + more
        )


def lacking(ours: Mapping[str, Any], served: Mapping[str, Any]) -> list[str]:
    """Paths of the fields that the served schema would drop; of a part that is missing, the part alone."""
    found: list[str] = []
    for name in _JUDGED:
        found += _lacking(_part(ours, name), _part(served, name), name)
    return found


def _lacking(ours: Mapping[str, Any], served: Mapping[str, Any] | None, path: str) -> Iterator[str]:
    if served is None:
        yield path
        return
    if served.get(_OPEN):
        return
    for name in ours.get("properties") or {}:
        yield from _lacking(_part(ours, name), (served.get("properties") or {}).get(name), f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(inner := ours.get(key), Mapping):
            yield from _lacking(inner, served.get(key), path + mark)


def _part(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = (parent.get("properties") or {}).get(name) or {}
    return part


def _schema_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kind's schema in what the API server publishes. Missing if it isn't published yet."""
    group, _, version = names.API_VERSION.partition("/")
    wanted = {"group": group, "version": version, "kind": names.KIND}
    for found in ((document.get("components") or {}).get("schemas") or {}).values():
        if wanted in (found.get(_GVK) or ()):
            kind: Mapping[str, Any] = found
            return kind
    raise Missing("the CustomResourceDefinition is not published yet", code=404)
