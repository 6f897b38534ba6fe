"""An API server in memory, behind the methods of the operator's client: versions, conflicts, uids, preconditions.

What it was asked is in `calls`. A test may let calls fail in advance.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from stage_operator.client.kube import Conflict, KubeError, Listing, Missing, Resource, resource_of

Manifest = dict[str, Any]


class FakeKube:
    """Holds objects by kind, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.failures: dict[tuple[str, str], list[KubeError]] = {}
        self.mounts_images = True
        self.prune: Callable[[Manifest], Manifest] = lambda status: status
        self.before: Callable[[str, str, str], None] = lambda verb, kind, name: None
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    def store(self, manifest: Manifest) -> Manifest:
        """Put an object there as somebody else would. The answer is a copy of it as it is stored."""
        stored = copy.deepcopy(manifest)
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[(stored["kind"], metadata.get("namespace", ""), metadata["name"])] = stored
        return copy.deepcopy(stored)

    def writes(self) -> list[tuple[str, str, str]]:
        """What was asked, without what was only read."""
        return [call for call in self.calls if call[0] not in ("get", "list")]

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest:
        self._called("get", resource.kind, name)
        return copy.deepcopy(self._find(resource.kind, namespace, name))

    async def list(self, resource: Resource, namespace: str | None, **_: Any) -> Listing:
        self._called("list", resource.kind, "")
        found = [
            copy.deepcopy(each)
            for (kind, where, _), each in self.objects.items()
            if kind == resource.kind and namespace in (None, where)
        ]
        return Listing(tuple(found), next(self._versions))

    async def create(self, manifest: Manifest, *, dry_run: bool = False, **_: Any) -> Manifest:
        name = manifest["metadata"]["name"]
        if dry_run:
            return manifest if self.mounts_images else _without_images(manifest)
        self._called("create", manifest["kind"], name)
        if (manifest["kind"], manifest["metadata"].get("namespace", ""), name) in self.objects:
            raise Conflict(f"{name} exists", code=409, reason="AlreadyExists")
        return self.store(manifest)

    async def replace(self, manifest: Manifest, **_: Any) -> Manifest:
        metadata, kind = manifest["metadata"], manifest["kind"]
        self._called("update", kind, metadata["name"])
        old = self._find(kind, metadata.get("namespace"), metadata["name"])
        if metadata["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Conflict(f"{metadata['name']} has changed", code=409, reason="Conflict")
        return self.store(manifest)

    async def apply(self, manifest: Manifest) -> Manifest:
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        self._called("apply", kind, name)
        resource_of(manifest["apiVersion"], kind)
        old = self.objects.get((kind, manifest["metadata"].get("namespace", ""), name))
        uid = {} if old is None else {"uid": old["metadata"]["uid"]}
        return self.store({**manifest, "metadata": {**manifest["metadata"], **uid}})

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Manifest,
        *,
        subresource: str | None = None,
    ) -> Manifest:
        self._called("patch", resource.kind, name)
        old = self._find(resource.kind, namespace, name)
        wanted = (patch.get("metadata") or {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            raise Conflict(f"{name} has changed", code=409, reason="Conflict")
        new = merged(old, {part: value for part, value in patch.items() if part != "metadata"})
        if subresource == "status":
            new["status"] = self.prune(new["status"])
        return self.store(new)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> Manifest:
        self._called("delete", resource.kind, name)
        old = self._find(resource.kind, namespace, name)
        if uid is not None and uid != old["metadata"]["uid"]:
            raise Conflict(f"{name} is another", code=409, reason="Conflict")
        if resource.kind == "Pod" and grace_s != 0:
            metadata = {**old["metadata"], "deletionTimestamp": "now", "deletionGracePeriodSeconds": 30}
            return self.store({**old, "metadata": metadata})
        del self.objects[(resource.kind, namespace or "", name)]
        return {"kind": "Status", "status": "Success"}

    def _find(self, kind: str, namespace: str | None, name: str) -> Manifest:
        if (found := self.objects.get((kind, namespace or "", name))) is None:
            raise Missing(f"no {kind} {name}", code=404, reason="NotFound")
        return found

    def _called(self, verb: str, kind: str, name: str) -> None:
        self.before(verb, kind, name)
        self.calls.append((verb, kind, name))
        if failures := self.failures.get((verb, kind)):
            raise failures.pop(0)


def merged(old: Any, patch: Any) -> Any:
    """What a JSON merge patch makes of a value."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _without_images(pod: Manifest) -> Manifest:
    """What a server makes of a pod that doesn't know of volumes that are images: it takes them for folders."""
    made = copy.deepcopy(pod)
    for volume in made["spec"]["volumes"]:
        if volume.pop("image", None) is not None:
            volume["emptyDir"] = {}
    return made
