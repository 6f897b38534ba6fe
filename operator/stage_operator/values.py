"""The values between deciding and doing: what a plan is made from, and what it asks to be done.

Objects are plain mappings, as the API server's JSON has them. A plan is about one stage, so its actions name no
namespace but the one in a manifest; nothing in here talks to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Self

from stage_api.pod_facts import PodFacts
from stage_api.startup_progress import StartProgress

Manifest = dict[str, Any]
"""One Kubernetes object. Never changed once it is in a value of this module."""

FIELD_MANAGER: Final = "omnistage-operator"
"""Who owns the fields that the operator applies."""


class StageKey(NamedTuple):
    """Which stage."""

    namespace: str
    name: str

    @classmethod
    def of(cls, stage: Mapping[str, Any]) -> Self:
        """The key of a stage's own object."""
        metadata = stage["metadata"]
        return cls(metadata["namespace"], metadata["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildKey(NamedTuple):
    """Which child of a stage that isn't a pod."""

    kind: str
    name: str

    @classmethod
    def of(cls, child: Mapping[str, Any]) -> Self:
        """The key of an object or a manifest."""
        return cls(child["kind"], child["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Api:
    """What the API server serves beside the kinds that every cluster has. Found out, never assumed.

    The apiVersion of a kind, or None where the cluster hasn't got it.
    """

    pod_group: str | None = None
    """Kubernetes' own PodGroup, such as scheduling.k8s.io/v1beta1."""
    volcano: str | None = None
    """Volcano's PodGroup."""
    coscheduling: str | None = None
    """PodGroup of the scheduler plugins."""
    pod_monitor: str | None = None
    """PodMonitor of the Prometheus operator."""
    nodes: bool = True
    """Whether the nodes may be seen. Where not, `Objects.nodes` is empty and says nothing."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the operator's own settings say about stages."""

    worker_image: str
    """Image of stages that name none."""
    allow_host_path: bool = False
    """Whether stages may read folders of the nodes."""
    namespace: str | None = None
    """Where the operator's own pods are, which ask those of stages; None if it is none of a cluster's."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action of the plan before that the API server would not have: a quota, Pod Security, a wrong template."""

    kind: str
    name: str
    reason: str
    """The server's word for it, such as Forbidden, Invalid or AlreadyExists (a stranger has the name)."""
    message: str

    @property
    def is_over_quota(self) -> bool:
        """Whether it might be had if the namespace had less. The server has no word of its own for that."""
        return self.reason == "Forbidden" and "exceeded quota" in self.message


@dataclass(frozen=True, slots=True)
class Gone:
    """Pods of one life of a replica that were there and are no more."""

    epoch: int
    ordinals: frozenset[int]
    revision: str


@dataclass(frozen=True, slots=True)
class PodEvent:
    """What the cluster told last about a pod."""

    is_warning: bool
    reason: str
    """One CamelCase word, such as FailedMount."""
    note: str


@dataclass(frozen=True, slots=True)
class Said:
    """What was asked about a pod beside its object. For people: nothing about life and death is decided by it."""

    event: PodEvent | None = None
    """Of one of which nothing has started yet."""
    start: StartProgress | None = None
    """Of one that isn't ready."""
    facts: PodFacts | None = None
    """Of one that is, or was."""
    unreachable: str = ""
    """Why it gave no answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Since when something about an object is so, by the clock of the operator that looked on."""

    since_s: float
    mark: str = ""
    """What it is so by; by another it is so anew."""
    witnessed: bool = True
    """Whether it came true while the operator looked; else it was so before, nobody here knows how long."""
    until_s: float | None = None
    """When it ceased to be so, if it has."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What the operator knows of one stage at one moment."""

    stage: Manifest
    api: Api
    pods: tuple[Manifest, ...] = ()
    """Of a pod's spec only what the cache keeps of it: where it is bound, its grace, its gates."""
    nodes: Mapping[str, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    """Those that the pods are on. One that is missing has been deleted, if nodes may be seen at all."""
    children: Mapping[ChildKey, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    """All but the pods and the secret, which is never read."""
    refusals: tuple[Refusal, ...] = ()
    said: Mapping[str, Said] = field(default_factory=lambda: MappingProxyType({}))
    """By the uid of the pod that it is about."""
    gone: Mapping[int, Gone] = field(default_factory=lambda: MappingProxyType({}))
    """By replica, of the latest life of which pods went. Nobody remembers those that went while nobody looked."""
    seen: Mapping[str, Mapping[str, Seen]] = field(default_factory=lambda: MappingProxyType({}))
    """By uid, of the stage, its pods and their nodes: since when what is so of them. What nobody saw is as it says."""

    @property
    def key(self) -> StageKey:
        """Which stage it is."""
        return StageKey.of(self.stage)


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Make a pod. One of that name that is there already is the same pod, made before a crash, or a stranger's."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete this very pod, and no other that took its name. Gone already is as good."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """None is the pod's own."""
    force: bool = False
    """Don't wait for its node, which is known to be gone: grace is 0 then."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply: the fields of this manifest are the operator's, all others are left alone."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreateOnce:
    """Make an object that must never change once it is there; one of that name is left as it is."""

    manifest: Manifest
    draw: Callable[[], Mapping[str, str]] | None = None
    """Makes the `stringData` of a Secret at the moment it is made, so that no plan holds one."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a child that is wanted no more. Gone already is as good."""

    api_version: str
    kind: str
    name: str
    uid: str | None = None
    """Only this very object; None, whichever has the name."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell people what happened, in an event about an object."""

    type: Literal["Normal", "Warning"]
    reason: str
    """What happened, as one CamelCase word."""
    message: str
    regarding: Mapping[str, Any]
    """The object that it happened to."""


Action = CreatePod | DeletePod | Apply | CreateOnce | Remove | Emit


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be, and what is to be done about it, in order."""

    status: Manifest
    """The whole status that the stage should show."""
    actions: tuple[Action, ...] = ()
    status_first: bool = False
    """The status holds evidence that must not be lost: no action before it is stored."""
    wake_at_s: float | None = None
    """UNIX time to look again even if nothing changes until then."""
