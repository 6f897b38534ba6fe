"""What a user may lay over the pods of a stage, and what is the operator's own.

`podTemplate` is a part of a Kubernetes pod template: {metadata: {labels, annotations}, spec: {...}}. Containers,
volumes and the like are matched by name. What the operator sets by itself, and what another field of the spec says,
is refused here: never overwritten in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stage_api import names
from stage_api.base import LAW_BROKEN
from stage_api.errors import Fault, join, show

_OURS: Final = "nothing, since the operator sets it"
_METADATA: Final = ("labels", "annotations")
_APP_LABELS: Final = frozenset(f"app.kubernetes.io/{name}" for name in ("name", "instance", "managed-by"))

_POD: Final[Mapping[str, str]] = {
    "activeDeadlineSeconds": "nothing, since a stage has no end of its own",
    "ephemeralContainers": "nothing, since pods can't be made with them",
    "hostname": _OURS,
    "restartPolicy": _OURS,
    "schedulingGroup": "spec.gang",
    "setHostnameAsFQDN": _OURS,
    "subdomain": _OURS,
    "terminationGracePeriodSeconds": "spec.drain",
}
"""Fields of the pod that aren't the user's, and where to say it instead."""

_CONTAINER: Final[Mapping[str, str]] = {
    "args": _OURS,
    "command": _OURS,
    "image": "spec.engine.image",
    "imagePullPolicy": "spec.engine.imagePullPolicy",
    "livenessProbe": _OURS,
    "readinessProbe": _OURS,
    "resources": "spec.resources",
    "restartPolicy": _OURS,
    "startupProbe": "spec.startup",
    "stdin": _OURS,
    "terminationMessagePath": _OURS,
    "terminationMessagePolicy": _OURS,
    "tty": _OURS,
    "workingDir": _OURS,
}
"""Fields of the stage's own container that aren't the user's, and where to say it instead."""

NAMED: Final = ("containers", "initContainers", "imagePullSecrets", "volumes")
"""Lists of a pod's spec whose entries are matched by their names."""


def faults(template: Mapping[str, Any]) -> Iterator[Fault]:
    """All that is wrong with a template, by paths inside it."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield Fault(key, "one of the fields metadata, spec", "an unknown field")
    if (metadata := _mapping(template, "metadata")) is not None:
        yield from _metadata(metadata) if isinstance(metadata, Mapping) else (metadata,)
    if (spec := _mapping(template, "spec")) is not None:
        yield from _spec(spec) if isinstance(spec, Mapping) else (spec,)


def _metadata(metadata: Mapping[str, Any]) -> Iterator[Fault]:
    for part in metadata:
        if part not in _METADATA:
            yield Fault(f"metadata.{part}", "one of the fields labels, annotations", "another field")
    for part in _METADATA:
        values = _mapping(metadata, part, "metadata")
        if isinstance(values, Fault):
            yield values
            continue
        for key, value in (values or {}).items():
            path = f"metadata.{part}[{key}]"
            if not isinstance(value, str):
                yield Fault(path, "a string", show(value))
            elif key.partition("/")[0] == names.GROUP or key in _APP_LABELS:
                yield Fault(path, _OURS, show(value))


def _spec(spec: Mapping[str, Any]) -> Iterator[Fault]:
    for field, instead in _POD.items():
        if field in spec:
            yield Fault(f"spec.{field}", instead, show(spec[field]))
    for field in NAMED:
        yield from _named(spec.get(field), f"spec.{field}")
    yield from (fault.under("spec") for fault in _volumes(spec.get("volumes")))
    for i, container in _entries(spec.get("containers")):
        if container.get("name") == names.CONTAINER:
            yield from (fault.under(f"spec.containers[{i}]") for fault in _own_container(container))
    for i, container in _entries(spec.get("initContainers")):
        if container.get("name") in (names.CONTAINER, names.FETCH_CONTAINER):
            yield Fault(
                f"spec.initContainers[{i}].name", "a name that isn't the operator's", container["name"]
            )


def _volumes(volumes: Any) -> Iterator[Fault]:
    for i, volume in _entries(volumes):
        if str(volume.get("name", "")).startswith(names.VOLUME_PREFIX):
            yield Fault(f"volumes[{i}].name", f"a name without {names.VOLUME_PREFIX}", show(volume["name"]))


def _own_container(container: Mapping[str, Any]) -> Iterator[Fault]:
    for field, instead in _CONTAINER.items():
        if field in container:
            yield Fault(field, instead, show(container[field]))
    yield from _named(container.get("env"), "env")
    for i, variable in _entries(container.get("env")):
        if names.is_reserved_env(str(variable.get("name", ""))):
            yield Fault(f"env[{i}].name", "a name that isn't the operator's", show(variable["name"]))
    for i, mount in _entries(container.get("volumeMounts")):
        path = mount.get("mountPath")
        if not isinstance(path, str):
            yield Fault(f"volumeMounts[{i}].mountPath", "a path", show(path))
        elif any(_covers(path, ours) or _covers(ours, path) for ours in names.MOUNTS):
            yield Fault(f"volumeMounts[{i}].mountPath", "a path that isn't the operator's", show(path))


def _covers(path: str, other: str) -> bool:
    """Whether a mount at `path` hides `other`."""
    return f"{other.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")


def _named(value: Any, path: str) -> Iterator[Fault]:
    """Entries that can't be matched by their names."""
    if value is None:
        return
    if not isinstance(value, list):
        yield Fault(path, "a list", show(value))
        return
    seen: set[str] = set()
    for i, entry in enumerate(value):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name:
            yield Fault(f"{path}[{i}]", "a mapping with a name", show(entry))
            continue
        if name in seen:
            yield Fault(f"{path}[{i}].name", "each name once", show(name))
        seen.add(name)


def _entries(value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries of a list that are mappings; `_named` says what is wrong with the others."""
    if isinstance(value, list):
        yield from ((i, entry) for i, entry in enumerate(value) if isinstance(entry, Mapping))


def _mapping(node: Mapping[str, Any], field: str, path: str = "") -> Mapping[str, Any] | Fault | None:
    value = node.get(field)
    if value is None or isinstance(value, Mapping):
        return value
    return Fault(join(path, field), "a mapping", show(value))


def without_nulls(value: Any) -> Any:
    """A template's value without the keys that are null, at any depth: they count as left out."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _refuse(template: dict[str, Any]) -> dict[str, Any]:
    if found := tuple(faults(without_nulls(template))):
        text = "; ".join(map(str, found))
        raise PydanticCustomError(LAW_BROKEN, "{text}", {"text": text, "faults": found})
    return template


PodTemplate = Annotated[
    dict[str, Any],
    AfterValidator(_refuse),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""The API server takes any mapping here; what is wrong with it, the operator says in `Accepted`."""
