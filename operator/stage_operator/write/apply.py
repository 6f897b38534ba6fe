"""Carries a plan out: in its order, what may go together at the same time, and nothing that is done already.

What the API server answers goes into the cache at once, so that no later plan can be made without it: a pod that was
created is there before its event is, and none is made twice. Before each step it is asked again whether this replica
may still act.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stage_api import names
from stage_operator.client.kube import PODS, Conflict, Kube, Missing, Refused, Trouble, resource_of
from stage_operator.observed.cache import POD, Cache, kind_of, stage_of, version
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import (
    Action,
    Apply,
    CreateOnce,
    CreatePod,
    DeletePod,
    Emit,
    Manifest,
    Refusal,
    Remove,
    StageKey,
)

ANNOTATION_APPLIED: Final = f"{names.GROUP}/applied"
"""On what is applied: a digest of all that was, so that the next operator knows it without asking."""

_NO_IMAGES: Final = (
    "the cluster mounts no images as volumes: it takes Kubernetes 1.35, or 1.33 with ImageVolume switched on"
)

log = logging.getLogger(__name__)


class Fenced(Exception):
    """This replica may act no more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan's actions."""

    refusals: tuple[Refusal, ...]
    news: frozenset[StageKey]
    """Stages that should be looked at again, since the answers were news about them."""


def digest_of(manifest: Manifest) -> str:
    """A short hash of what is applied; the order of keys doesn't matter."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def holds(live: Any, wanted: Any) -> bool:
    """Whether an object has all that a manifest says. What the API server or others added is left out of account."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            name in live and holds(live[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(itertools.starmap(holds, zip(live, wanted, strict=True)))
        )
    return bool(live == wanted)


class Applier:
    """Carries out the plans of all stages."""

    def __init__(self, kube: Kube, cache: Cache, metrics: Metrics, may_act: Callable[[], bool]) -> None:
        self._kube = kube
        self._cache = cache
        self._metrics = metrics
        self._may_act = may_act
        self._applied: dict[StageKey, dict[str, int]] = {}  # of each child, the version after our last apply
        self._made: dict[StageKey, set[str]] = {}  # what is created once and can't be read

    async def carry_out(self, stage: Manifest, actions: Sequence[Action]) -> Outcome:
        """Do it. Trouble if it is not known to be done, Fenced if it may not be."""
        key = StageKey.of(stage)
        refusals: list[Refusal] = []
        news: frozenset[StageKey] = frozenset()
        creates = any(isinstance(action, CreatePod) for action in actions)
        todo = (
            each for each in actions if not isinstance(each, Emit) and not self._is_done(key, each, creates)
        )
        for kind, group in itertools.groupby(todo, type):
            if not self._may_act():
                raise Fenced
            answers = await asyncio.gather(
                *(self._do(stage, action) for action in group), return_exceptions=True
            )
            found = [answer for answer in answers if isinstance(answer, Refusal)]
            refusals += found
            news = news.union(*(answer for answer in answers if isinstance(answer, frozenset)))
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            if found and kind is DeletePod:
                break  # what should have made room is still there
        return Outcome(tuple(refusals), news)

    def forget(self, key: StageKey) -> None:
        """The stage is gone, and its children with it."""
        self._made.pop(key, None)
        self._applied.pop(key, None)

    def _is_done(self, key: StageKey, action: Action, creates: bool) -> bool:
        match action:
            case Apply(manifest):
                return self._is_applied(key, manifest)
            case CreateOnce(manifest):
                # It can't be read, so when pods that need it are made it is made sure of.
                return not creates and _id(manifest) in self._made.get(key, ())
        return False

    def _is_applied(self, key: StageKey, manifest: Manifest) -> bool:
        live = self._cache.child(manifest)
        if live is None:
            return False
        metadata = live["metadata"]
        if (metadata.get("annotations") or {}).get(ANNOTATION_APPLIED) != digest_of(manifest):
            return False
        # Either it shows all that is wanted, or this is what the server makes of it.
        ours = self._applied.get(key, {}).get(_id(manifest))
        return ours == version(live) or holds(live, manifest)

    async def _do(self, stage: Manifest, action: Action) -> frozenset[StageKey] | Refusal:
        kind, name = _about(action)
        try:
            match action:
                case CreatePod(manifest):
                    return await self._create_pod(stage, manifest)
                case DeletePod():
                    return await self._delete_pod(StageKey.of(stage), action)
                case Apply(manifest):
                    return await self._apply(stage, manifest)
                case CreateOnce():
                    return await self._create_once(StageKey.of(stage), action)
                case Remove():
                    return await self._remove(StageKey.of(stage), action)
        except Refused as error:
            log.warning("refused", extra={"kind": kind, "object": name, "error": error.message})
            return Refusal(kind, name, error.reason, error.said)
        raise TypeError(f"not an action on the cluster: {action!r}")

    async def _create_pod(self, stage: Manifest, manifest: Manifest) -> frozenset[StageKey] | Refusal:
        name = manifest["metadata"]["name"]
        try:
            if not await self._keeps_images(manifest):
                return Refusal(POD, name, "Invalid", _NO_IMAGES)
            pod = await self._kube.create(manifest)
        except Conflict:
            try:
                pod = await self._kube.get(PODS, manifest["metadata"]["namespace"], name)
            except Missing as error:
                raise Trouble(f"pod {name} was in the way and is gone") from error
            if not is_owned(pod, stage) or stage_of(pod) != StageKey.of(stage):
                return _stranger(POD, name)
        return self._cache.put(POD, pod)

    async def _keeps_images(self, manifest: Manifest) -> bool:
        """Whether volumes that are images stay what they are: too old a server makes empty folders of them."""
        wanted = _images(manifest)
        return not wanted or wanted <= _images(await self._kube.create(manifest, dry_run=True))

    async def _delete_pod(self, key: StageKey, action: DeletePod) -> frozenset[StageKey]:
        grace_s = 0 if action.force else action.grace_seconds
        known = {"metadata": {"namespace": key.namespace, "name": action.name, "uid": action.uid}}
        try:
            pod = await self._kube.delete(PODS, key.namespace, action.name, uid=action.uid, grace_s=grace_s)
        except (Missing, Conflict):
            return self._cache.drop(POD, known)
        if action.force:
            self._metrics.force_deleted()
        if pod.get("kind") == "Status" or _is_final(pod):
            return self._cache.drop(POD, known)
        return self._cache.put(POD, pod)

    async def _apply(self, stage: Manifest, manifest: Manifest) -> frozenset[StageKey] | Refusal:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if self._cache.child(manifest) is None:
            # A stranger's object would be taken over without a word.
            resource = resource_of(manifest["apiVersion"], kind)
            try:
                found = await self._kube.get(resource, manifest["metadata"].get("namespace"), name)
            except Missing:
                pass
            else:
                if not is_owned(found, stage):
                    return _stranger(kind, name)
        try:
            live = await self._kube.apply(_marked(manifest))
        except (Conflict, Missing) as error:  # it, its kind or its namespace is just going
            raise Trouble(error.message, code=error.code, reason=error.reason) from error
        self._cache.put(kind_of(manifest["apiVersion"], kind), live)
        self._applied.setdefault(StageKey.of(stage), {})[_id(manifest)] = version(live)
        return frozenset()

    async def _create_once(self, key: StageKey, action: CreateOnce) -> frozenset[StageKey]:
        manifest = action.manifest
        if action.draw is not None:
            manifest = {**manifest, "stringData": dict(action.draw())}
        with contextlib.suppress(Conflict):  # it is there, as it should be
            await self._kube.create(manifest)
        self._made.setdefault(key, set()).add(_id(manifest))
        return frozenset()

    async def _remove(self, key: StageKey, action: Remove) -> frozenset[StageKey]:
        resource = resource_of(action.api_version, action.kind)
        with contextlib.suppress(Missing, Conflict):  # gone, or another's
            await self._kube.delete(resource, key.namespace, action.name, uid=action.uid)
        gone = {
            "apiVersion": action.api_version,
            "kind": action.kind,
            "metadata": {"namespace": key.namespace, "name": action.name},
        }
        self._applied.get(key, {}).pop(_id(gone), None)
        live = self._cache.child(gone)
        return (
            frozenset() if live is None else self._cache.drop(kind_of(action.api_version, action.kind), live)
        )


def is_owned(obj: Manifest, stage: Manifest) -> bool:
    """Whether an object is this very stage's."""
    uid = stage["metadata"]["uid"]
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())


def _stranger(kind: str, name: str) -> Refusal:
    message = f"{kind} {name} exists already and belongs to somebody else"
    return Refusal(kind, name, "AlreadyExists", message)


def _images(pod: Manifest) -> set[str]:
    return {volume["name"] for volume in pod["spec"].get("volumes") or () if "image" in volume}


def _marked(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION_APPLIED: digest_of(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _is_final(pod: Manifest) -> bool:
    """Whether nothing is waited for any more before the pod goes."""
    metadata = pod["metadata"]
    return metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")


def _id(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def _about(action: Action) -> tuple[str, str]:
    match action:
        case CreatePod(manifest) | Apply(manifest) | CreateOnce(manifest):
            return manifest["kind"], manifest["metadata"]["name"]
        case DeletePod():
            return POD, action.name
        case Remove():
            return action.kind, action.name
        case Emit():
            return "Event", action.reason


def emits(actions: Iterable[Action]) -> tuple[Emit, ...]:
    """What people are to be told."""
    return tuple(action for action in actions if isinstance(action, Emit))
