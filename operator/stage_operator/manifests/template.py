"""A user's pod template laid over a pod that the operator made.

What the template may not say is refused by `stage_api.pod_template` before anything comes here, so nothing of the
operator's is lost: maps are merged, lists with names are merged by them, other lists are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stage_api.pod_template import without_nulls
from stage_operator.values import Manifest

_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose entries are told apart by one of their fields, as in Kubernetes' own merge."""
_JOINED: Final = frozenset({"tolerations", "topologySpreadConstraints", "schedulingGates", "envFrom"})
"""Lists of which each entry counts by itself."""


def overlay(pod: Manifest, template: Mapping[str, Any]) -> Manifest:
    """The pod with the template's labels, annotations and spec."""
    told = without_nulls(template)
    return _map(pod, {part: told[part] for part in ("metadata", "spec") if told.get(part)})


def _map(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Manifest:
    made = dict(ours)
    for key, value in theirs.items():
        made[key] = _merged(key, made.get(key), value)
    return made


def _merged(key: str, ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return _map(ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        if key in _KEYS:
            return _by(_KEYS[key], ours, theirs)
        if key in _JOINED:
            return [*ours, *theirs]
    return theirs


def _by(field: str, ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Ours in their order, then what is new; equals by `field` are merged."""
    made = list(ours)
    places = {entry[field]: i for i, entry in enumerate(ours)}
    for entry in theirs:
        its = entry.get(field) if isinstance(entry, Mapping) else None
        # Anything may stand there: what is no sound value, the API server says.
        place = places.get(its) if isinstance(its, str | int) else None
        if place is None:
            made.append(entry)
        else:
            made[place] = _map(made[place], entry)
    return made
