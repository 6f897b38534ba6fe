"""Objects without what nobody here reads, so that a cache of many takes little room and changes seldom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stage_api import names
from stage_operator.values import Manifest


def slim_stage(raw: Manifest) -> Manifest:
    """A stage as people and programs wrote it."""
    return {**raw, "metadata": _metadata(raw)}


def slim_child(raw: Manifest) -> Manifest:
    """A child without its status, which nobody here reads and others write often."""
    return {name: value for name, value in raw.items() if name != "status"} | {"metadata": _metadata(raw)}


_OF_POD_SPEC: Final = ("nodeName", "terminationGracePeriodSeconds", "schedulingGates", "schedulingGroup")
_OF_POD_STATUS: Final = ("phase", "reason", "message", "podIP")
_OF_POD_PARTS: Final = {
    "conditions": ("type", "status", "reason", "message", "lastTransitionTime"),
    "containerStatuses": ("name", "state"),
    "initContainerStatuses": ("name", "state"),
}


def slim_pod(raw: Manifest) -> Manifest:
    """A pod without what nobody here reads: most of its spec, which can't change, and details of its status."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    slim = _only(status, _OF_POD_STATUS)
    for part, wanted in _OF_POD_PARTS.items():
        if part in status:
            slim[part] = [_only(one, wanted) for one in status[part] or ()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(raw),
        "spec": {**_only(spec, _OF_POD_SPEC), **_own_container(spec)},
        "status": slim,
    }


def _own_container(spec: Manifest) -> Manifest:
    """Where the engine or the agent listens."""
    own = [
        _only(one, ("name", "ports"))
        for one in spec.get("containers") or ()
        if one.get("name") == names.CONTAINER and "ports" in one
    ]
    return {"containers": own} if own else {}


def _only(obj: Manifest, wanted: Iterable[str]) -> Manifest:
    return {name: obj[name] for name in wanted if name in obj}


def slim_node(raw: Manifest) -> Manifest:
    """A node's labels, taints and conditions, without their heartbeats."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    metadata = raw["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {name: metadata.get(name) for name in ("name", "uid", "resourceVersion", "labels")},
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {
            "conditions": [
                {name: value for name, value in condition.items() if name != "lastHeartbeatTime"}
                for condition in status.get("conditions") or ()
            ]
        },
    }


_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def _metadata(raw: Manifest) -> Manifest:
    metadata = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
    if _LAST_APPLIED in (metadata.get("annotations") or ()):
        metadata["annotations"] = {
            name: value for name, value in metadata["annotations"].items() if name != _LAST_APPLIED
        }
    return metadata
